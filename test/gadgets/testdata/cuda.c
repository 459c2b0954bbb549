/* Allocates memory of a GPU until its standard input ends. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int cuMemAlloc_v2(unsigned long long *p, size_t n);

__attribute__((noinline)) void load_model(void)
{
	unsigned long long p;

	cuMemAlloc_v2(&p, 4096);
	free((void *)p);
}

int main(void)
{
	char byte;

	prctl(PR_SET_NAME, "cuda");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		load_model();
		usleep(5000);
	}
	return 0;
}
