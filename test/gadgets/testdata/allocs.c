/* Allocates memory until its standard input ends. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

void *volatile kept;

__attribute__((noinline)) void allocate_small(void)
{
	kept = malloc(100);
	free(kept);
}

__attribute__((noinline)) void allocate_large(void)
{
	kept = calloc(1000, 10);
	free(kept);
}

int main(void)
{
	char byte;

	prctl(PR_SET_NAME, "allocs");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		allocate_small();
		allocate_large();
		usleep(5000);
	}
	return 0;
}
