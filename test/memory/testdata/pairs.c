/*
 * Allocates and frees in pairs. The arguments say how much to compute between
 * two pairs. Each line of the standard input is a number of pairs. For each
 * line, the program prints the elapsed time and its CPU time, in nanoseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))

static unsigned long long state = 88172645463325252ull;
static void *volatile kept;

NOINLINE void compute(long rounds)
{
	for (; rounds > 0; rounds--) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
	}
}

/* 16 to 271 bytes. */
NOINLINE void pair(void)
{
	kept = malloc(16 + (state & 255));
	free(kept);
	__asm__ volatile("" ::: "memory");
}

static long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 0, pairs;

	while (scanf("%ld", &pairs) == 1) {
		long long wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);

		for (long i = 0; i < pairs; i++) {
			compute(rounds);
			pair();
		}
		printf("%lld %lld\n", now(CLOCK_MONOTONIC) - wall, now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
		fflush(stdout);
	}
	return 0;
}
