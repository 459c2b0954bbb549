/* Does all that gadgets watch until its standard input ends: burns CPU time, opens a file, allocates memory, uses a capability. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static volatile unsigned sum;

__attribute__((noinline)) static void burn(void)
{
	for (unsigned i = 0; i < 5000000; i++)
		sum += i;
}

__attribute__((noinline)) static void touch(void)
{
	char *volatile memory = malloc(100000);
	int fd = open("/dev/null", O_RDONLY);

	memory[0] = 1;
	free(memory);
	close(fd);
	if (chroot("/"))
		_exit(1);
}

int main(void)
{
	char byte;

	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		burn();
		touch();
	}
	return 0;
}
