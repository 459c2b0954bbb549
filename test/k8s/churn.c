/*
 * churn SECONDS is the workload of the soak test. For this time, it uses a twentieth of a
 * CPU, always in new stacks, and keeps renaming its thread. A stack consists of 24 random
 * calls of even or odd, so there are 2^24 different stacks. Compile it with -O0 and frame
 * pointers.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 24

static volatile uint64_t sink;

void odd(unsigned bits, int depth);

static long since(clockid_t clock, const struct timespec *start)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (now.tv_sec - start->tv_sec) * 1000000000l + now.tv_nsec - start->tv_nsec;
}

static void spin(void)
{
	struct timespec start;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
	do {
		for (int i = 0; i < 2000; i++)
			sink += i;
	} while (since(CLOCK_THREAD_CPUTIME_ID, &start) < 1000000);
}

__attribute__((noinline)) void even(unsigned bits, int depth)
{
	if (depth == DEPTH)
		spin();
	else if (bits & 1)
		odd(bits >> 1, depth + 1);
	else
		even(bits >> 1, depth + 1);
	sink++;
}

__attribute__((noinline)) void odd(unsigned bits, int depth)
{
	if (depth == DEPTH)
		spin();
	else if (bits & 1)
		odd(bits >> 1, depth + 1);
	else
		even(bits >> 1, depth + 1);
	sink++;
}

static void quit(int sig)
{
	(void)sig;
	_exit(0);
}

int main(int argc, char **argv)
{
	long seconds = argc > 1 ? atol(argv[1]) : 10;
	struct timespec start;
	unsigned seed;
	char name[16];

	/* Process 1 of a container ignores signals without a handler. */
	signal(SIGTERM, quit);
	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		return 1;
	srandom(seed);
	/* Processes that start together must not exit together. */
	seconds += random() % (seconds + 1);
	clock_gettime(CLOCK_MONOTONIC, &start);
	while (since(CLOCK_MONOTONIC, &start) < seconds * 1000000000l) {
		snprintf(name, sizeof(name), "churn-%08lx", (unsigned long)random());
		prctl(PR_SET_NAME, name);
		for (int i = 0; i < 5; i++) {
			for (int j = 0; j < 5; j++)
				even((unsigned)random(), 0);
			usleep(95000);
		}
	}
	return 0;
}
