/*
 * burn [FILE] is the workload. It spins in named functions for ever, or until the file exists.
 * It mostly sleeps, so one CPU is enough for a dozen of these processes. Compile it with frame
 * pointers.
 *
 * burn leak FILE keeps some memory from leak_before until the file exists, then KEPT_TIMES each from
 * leak_much and leak_little. From then on, it allocates and frees memory, and keeps nothing.
 *
 * burn for SECONDS spins for this time without sleep. Its thread has the name of the host, which is the pod's name in a pod.
 */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* leak_test.go repeats this number. */
#define KEPT_TIMES 512

volatile uint64_t sink;

static void quit(int sig)
{
	(void)sig;
	_exit(0);
}

__attribute__((noinline)) void burn_leaf(void)
{
	for (int i = 0; i < 2000000; i++)
		sink += i * 2654435761u;
	sink++;
}

__attribute__((noinline)) void burn_middle(void)
{
	burn_leaf();
	sink++;
}

__attribute__((noinline)) void burn_outer(void)
{
	burn_middle();
	sink++;
}

static void *volatile kept;

__attribute__((noinline)) static void allocate_much(void)
{
	kept = malloc(30000);
	free(kept);
	sink++;
}

__attribute__((noinline)) static void allocate_little(void)
{
	kept = malloc(10000);
	free(kept);
	sink++;
}

static void allocate(void)
{
	allocate_much();
	allocate_little();
	usleep(5000);
}

__attribute__((noinline)) static void leak_before(void)
{
	kept = malloc(1000);
	sink++;
}

__attribute__((noinline)) static void leak_much(void)
{
	kept = malloc(6000);
	sink++;
}

__attribute__((noinline)) static void leak_little(void)
{
	kept = malloc(2000);
	sink++;
}

static void leak(const char *file)
{
	for (; access(file, F_OK); usleep(50000))
		leak_before();
	for (int i = 0; i < KEPT_TIMES; i++, usleep(5000)) {
		leak_much();
		leak_little();
	}
	for (;;)
		allocate();
}

static int burn_for(long seconds)
{
	char name[64] = "";
	struct timespec start, now;

	gethostname(name, sizeof(name) - 1);
	prctl(PR_SET_NAME, name);
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		burn_outer();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - start.tv_sec) * 1000000000l + now.tv_nsec - start.tv_nsec < seconds * 1000000000l);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "for"))
		return burn_for(atol(argv[2]));
	/* Process 1 of a container ignores signals without a handler. */
	signal(SIGTERM, quit);
	if (argc == 3 && !strcmp(argv[1], "leak"))
		leak(argv[2]);
	while (argc < 2 || access(argv[1], F_OK)) {
		for (int i = 0; i < 3; i++)
			burn_outer();
		usleep(80000);
	}
	return 0;
}
