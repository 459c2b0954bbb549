/*
 * A load with very many different stacks, until its standard
 * input ends. Some threads burn a little CPU time and wait
 * briefly, each time at the end of another of about a million
 * call chains. Other threads wait long in such a chain.
 *
 *	churn BUSY LONG [WAIT]
 *
 * starts BUSY threads of the first kind, called "churn", and LONG of the
 * second, called "patient", which wait for 6 to 7 s. With WAIT, threads of the
 * first kind wait for so many microseconds, in place of up to 500. So their
 * number does not depend on the machine's speed. It prints the number of waits.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 22

static atomic_long waits;
static atomic_bool over;
static int wait_us;

static unsigned long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

/* Not a tail call, which would remove the caller's frame. */
__attribute__((noinline)) static int wait_for_nothing(int us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000L };
	int r = ppoll(NULL, 0, &t, NULL);

	atomic_fetch_add(&waits, 1);
	return r + 1;
}

__attribute__((noinline)) static int work(unsigned us, int wait)
{
	unsigned long long end = now() + us * 1000ULL;
	int n = 0;

	while (now() < end)
		n++;
	return wait_for_nothing(wait) + n;
}

static int even(unsigned path, int depth, unsigned us, int wait);

__attribute__((noinline)) static int odd(unsigned path, int depth, unsigned us, int wait)
{
	int n;

	if (!depth)
		return work(us, wait) + 1;
	n = path & 1 ? odd(path >> 1, depth - 1, us, wait) : even(path >> 1, depth - 1, us, wait);
	return n + 1;
}

__attribute__((noinline)) static int even(unsigned path, int depth, unsigned us, int wait)
{
	int n;

	if (!depth)
		return work(us, wait) + 2;
	n = path & 1 ? odd(path >> 1, depth - 1, us, wait) : even(path >> 1, depth - 1, us, wait);
	return n + 2;
}

static void *churn(void *arg)
{
	unsigned seed = (unsigned long)arg;

	prctl(PR_SET_NAME, "churn");
	while (!over)
		even(rand_r(&seed), DEPTH, rand_r(&seed) % 200, wait_us ? wait_us : rand_r(&seed) % 500);
	return NULL;
}

static void *patient(void *arg)
{
	unsigned seed = (unsigned long)arg + 1000;

	prctl(PR_SET_NAME, "patient");
	while (!over)
		even(rand_r(&seed), DEPTH, 10, 6000000 + rand_r(&seed) % 1000000);
	return NULL;
}

int main(int argc, char **argv)
{
	int busy = argc > 1 ? atoi(argv[1]) : 12, many = argc > 2 ? atoi(argv[2]) : 50;
	pthread_t thread;
	pthread_attr_t small;
	char byte;

	wait_us = argc > 3 ? atoi(argv[3]) : 0;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 1 << 18);
	for (long i = 0; i < busy; i++)
		if (pthread_create(&thread, &small, churn, (void *)i))
			return 1;
	for (long i = 0; i < many; i++)
		if (pthread_create(&thread, &small, patient, (void *)i))
			return 1;
	while (read(0, &byte, 1) > 0)
		;
	over = 1;
	printf("%ld\n", waits);
	fflush(stdout);
	_exit(0);
}
