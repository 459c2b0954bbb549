/*
 * burn [FILE] is the workload. It spins in named functions for ever, or until the file exists.
 * It mostly sleeps, so one CPU is enough for a dozen of these processes. Compile it with frame
 * pointers.
 *
 * burn allocate allocates and frees memory, three quarters of it in allocate_much.
 *
 * burn leak FILE keeps some memory from leak_before until the file exists, then KEPT_TIMES each from
 * leak_much and leak_little. From then on, it allocates and frees as with allocate, and keeps nothing.
 *
 * burn contend FILE runs two threads for each of two mutexes. The threads contend in wait_before until the file
 * exists. Then they contend ROUNDS times each in take_long and take_short. burn prints how many nanoseconds all
 * threads spent in these two functions.
 *
 * burn for SECONDS spins for this time without sleep. Its thread has the name of the host, which is the pod's name in a pod.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* leak_test.go repeats these numbers. */
#define KEPT_TIMES 512
#define ROUNDS 150

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

/* A mutex, how long a thread holds it in microseconds, and how long the threads waited in
 * nanoseconds. */
struct lock {
	pthread_mutex_t mutex;
	void (*take)(struct lock *lock);
	int held;
	atomic_ulong waited;
};

__attribute__((noinline)) static void wait_before(struct lock *lock)
{
	pthread_mutex_lock(&lock->mutex);
	sink++;
}

__attribute__((noinline)) static void take_long(struct lock *lock)
{
	pthread_mutex_lock(&lock->mutex);
	sink++;
}

__attribute__((noinline)) static void take_short(struct lock *lock)
{
	pthread_mutex_lock(&lock->mutex);
	sink++;
}

static struct lock locks[] = {
	{.mutex = PTHREAD_MUTEX_INITIALIZER, .take = take_long, .held = 20000},
	{.mutex = PTHREAD_MUTEX_INITIALIZER, .take = take_short, .held = 5000},
};

static const char *start_file;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ul + t.tv_nsec;
}

/* Holds a locked mutex for a while. Then unlocks it, and gives another thread time to lock it. */
static void hold(struct lock *lock)
{
	usleep(lock->held);
	pthread_mutex_unlock(&lock->mutex);
	usleep(lock->held / 4);
}

static void *contend_for(void *arg)
{
	struct lock *lock = arg;

	while (access(start_file, F_OK)) {
		wait_before(lock);
		hold(lock);
	}
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t begin = now();

		lock->take(lock);
		lock->waited += now() - begin;
		hold(lock);
	}
	return NULL;
}

static int contend(const char *file)
{
	pthread_t threads[4];

	start_file = file;
	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, contend_for, &locks[i % 2]))
			return 1;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	printf("take_long %lu\ntake_short %lu\n", locks[0].waited, locks[1].waited);
	fflush(stdout);
	for (;;)
		pause();
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
	if (argc == 3 && !strcmp(argv[1], "contend"))
		return contend(argv[2]);
	while (argc == 2 && !strcmp(argv[1], "allocate"))
		allocate();
	while (argc < 2 || access(argv[1], F_OK)) {
		for (int i = 0; i < 3; i++)
			burn_outer();
		usleep(80000);
	}
	return 0;
}
