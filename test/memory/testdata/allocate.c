/*
 * Allocates 60, 30 and 10 percent of the bytes in three functions. Memory from
 * leak_some is never freed. The first argument is the time in seconds, the
 * second the microseconds between two rounds. The optional third argument is
 * the minimum number of rounds. The program prints its counts: name, bytes,
 * calls. With the third argument, another thread then frees the memory from
 * hand_over.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#ifndef NAME
#define NAME "allocate"
#endif

#define NOINLINE __attribute__((noinline, noclone))

struct count {
	unsigned long long bytes, calls;
};

static struct count large, middle, leaked;
static void *volatile kept, *volatile behind;
static unsigned long long state = 88172645463325252ull;

/* Sizes around a mean, without a common divisor. */
static size_t size_around(size_t mean)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return mean / 2 + state % mean;
}

static void note(struct count *c, size_t size)
{
	c->bytes += size;
	c->calls++;
}

NOINLINE void allocate_large(void)
{
	size_t size = size_around(6000);

	note(&large, size);
	kept = malloc(size);
	free(kept);
	__asm__ volatile("" ::: "memory");
}

NOINLINE void allocate_middle(void)
{
	size_t size = size_around(300);

	note(&middle, size);
	kept = calloc(size, 1);
	free(kept);
	for (int i = 0; i < 3; i++) {
		size_t first = size / 2, then = 2 * size - first;

		note(&middle, first);
		kept = realloc(NULL, first);
		note(&middle, size);
		behind = calloc(size, 1);
		/* realloc must move this block, because there is no room after it. */
		note(&middle, then);
		kept = realloc(kept, then);
		free(kept);
		free(behind);
	}
	__asm__ volatile("" ::: "memory");
}

NOINLINE void leak_some(void)
{
	size_t size = size_around(100);

	for (int i = 0; i < 10; i++) {
		note(&leaked, size);
		if (posix_memalign((void **)&kept, 16, size))
			abort();
	}
	__asm__ volatile("" ::: "memory");
}

static void *handed[1000];

NOINLINE void hand_over(void)
{
	for (int i = 0; i < 1000; i++)
		handed[i] = malloc(4096);
	__asm__ volatile("" ::: "memory");
}

static void *take_over(void *unused)
{
	for (int i = 0; i < 1000; i++)
		free(handed[i]);
	return unused;
}

NOINLINE void round_of_work(void)
{
	allocate_large();
	allocate_middle();
	leak_some();
	__asm__ volatile("" ::: "memory");
}

static void print(const char *name, struct count *c)
{
	printf("%s %llu %llu\n", name, c->bytes, c->calls);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int work(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 10;
	long pause = argc > 2 ? atol(argv[2]) : 0, rounds = argc > 3 ? atol(argv[3]) : 0;
	double begin;

	prctl(PR_SET_NAME, NAME);
	/* Allocations before the probes are attached do not count. */
	printf("ready\n");
	fflush(stdout);
	getchar();
	for (begin = now(); now() - begin < seconds || rounds > 0; rounds--) {
		round_of_work();
		if (pause)
			usleep(pause);
	}
	if (argc > 3) {
		pthread_t other;

		hand_over();
		if (pthread_create(&other, NULL, take_over, NULL) || pthread_join(other, NULL))
			abort();
	}
	print("allocate_large", &large);
	print("allocate_middle", &middle);
	print("leak_some", &leaked);
	fflush(stdout);
	getchar();
	return 0;
}

#ifdef WITHOUT_MAIN
static int count;
static char **args;

static void *thread(void *unused)
{
	(void)unused;
	exit(work(count, args));
}

/* The first thread exits some time after the other thread has started to work. */
int main(int argc, char **argv)
{
	pthread_t other;

	count = argc;
	args = argv;
	if (pthread_create(&other, NULL, thread, NULL))
		abort();
	while (!large.calls)
		usleep(1000);
	sleep(2);
	pthread_exit(NULL);
}
#else
int main(int argc, char **argv)
{
	return work(argc, argv);
}
#endif
