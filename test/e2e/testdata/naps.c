/*
 * Takes naps of some ten microseconds in nap_first until the standard input has a line, and then the
 * given number of naps.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const struct timespec moment = { 0, 10000 };

__attribute__((noinline)) void nap_first(void)
{
	nanosleep(&moment, NULL);
	__asm__ volatile("");
}

__attribute__((noinline)) void nap(void)
{
	nanosleep(&moment, NULL);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	char byte;

	if (argc != 2)
		return 1;
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) < 0)
		nap_first();
	for (int left = atoi(argv[1]); left > 0; left--)
		nap();
	return 0;
}
