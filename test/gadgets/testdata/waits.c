/*
 * Waits until its standard input ends, three times as long in wait_long as in
 * wait_short. At the end, it prints the nanoseconds in each, without its own
 * CPU time. With a number, it waits in wait_first until it gets a line, and then
 * that number of times in the others. 0 means no number. A second argument is
 * its thread's name.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static long long nanoseconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* The time so far in which this thread was not on a CPU. */
static long long off_cpu(void)
{
	return nanoseconds(CLOCK_MONOTONIC) - nanoseconds(CLOCK_THREAD_CPUTIME_ID);
}

/*
 * The library's functions have no frame pointer, so their direct caller is missing
 * from stacks. That is this function, and not the one that the test looks for.
 */
__attribute__((noinline)) static void nap(long ms)
{
	struct timespec t = { 0, ms * 1000000 };

	nanosleep(&t, NULL);
}

__attribute__((noinline)) static void wait_for_nothing(int ms)
{
	poll(NULL, 0, ms);
}

__attribute__((noinline)) void wait_long(void)
{
	nap(90);
}

__attribute__((noinline)) void wait_short(void)
{
	wait_for_nothing(30);
}

__attribute__((noinline)) void wait_first(void)
{
	nap(30);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 0;
	long long in_long = 0, in_short = 0, a, b, c;
	char byte;

	prctl(PR_SET_NAME, argc > 2 ? argv[2] : "waits");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (rounds && read(0, &byte, 1) < 0)
		wait_first();
	while (rounds ? rounds-- > 0 : read(0, &byte, 1) != 0) {
		a = off_cpu();
		wait_long();
		b = off_cpu();
		wait_short();
		c = off_cpu();
		in_long += b - a;
		in_short += c - b;
	}
	printf("%lld %lld\n", in_long, in_short);
	return 0;
}
