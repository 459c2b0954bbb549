/*
 * burn [SECONDS | pause] is the workload. It spins in named functions, for ever or for some seconds of its own CPU time. With
 * pause, it only waits, like a pod's pause container. Otherwise, it sleeps most of the time. If every CPU were always busy, an
 * emulated machine would take ten seconds instead of one to start a pod. It sleeps for at most half a second at once, because a
 * round can take many seconds while a gadget starts.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

volatile unsigned long sink;

__attribute__((noinline)) static void burn_inner(void)
{
	for (unsigned long i = 0; i < 100000; i++)
		sink += i * i;
}

__attribute__((noinline)) static void burn_outer(void)
{
	for (int i = 0; i < 20; i++)
		burn_inner();
	sink++;
}

static long microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	clock_t end = 0;
	long start, took;

	while (argc > 1 && !strcmp(argv[1], "pause"))
		pause();
	if (argc > 1)
		end = atol(argv[1]) * CLOCKS_PER_SEC;
	while (!end || clock() < end) {
		start = microseconds();
		burn_outer();
		took = microseconds() - start;
		usleep(took < 125000 ? 4 * took : 500000);
	}
	return 0;
}
