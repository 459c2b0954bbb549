/*
 * five makes events for each of the five gadgets until its standard input ends. Then it prints its own counts, one
 * a line: CPU time and time off the CPU of both threads, page faults, bytes allocated, time waited for a mutex.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone)) static
#define HERE __asm__ volatile("" ::: "memory")

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int over;
static long begun[2], ended[2], used[2], locked[2], bytes;
static void *volatile kept;

static long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}

FUNCTION void spin(void)
{
	for (long end = now(CLOCK_THREAD_CPUTIME_ID) + 10000000; now(CLOCK_THREAD_CPUTIME_ID) < end;)
		;
	HERE;
}

FUNCTION void touch(void)
{
	char *p = mmap(NULL, 64 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (int i = 0; i < 64; i++)
		((volatile char *)p)[i << 12] = 1;
	munmap(p, 64 << 12);
	HERE;
}

FUNCTION void allocate(void)
{
	for (int i = 0; i < 4; i++) {
		kept = malloc(20000);
		bytes += 20000;
		free(kept);
	}
	HERE;
}

FUNCTION void take(int thread, int hold)
{
	long begin = now(CLOCK_MONOTONIC);

	pthread_mutex_lock(&mutex);
	locked[thread] += now(CLOCK_MONOTONIC) - begin;
	usleep(hold);
	pthread_mutex_unlock(&mutex);
	HERE;
}

static void *hold(void *unused)
{
	begun[1] = now(CLOCK_MONOTONIC);
	while (!over) {
		take(1, 20000);
		usleep(20000);
	}
	used[1] = now(CLOCK_THREAD_CPUTIME_ID);
	ended[1] = now(CLOCK_MONOTONIC);
	return unused;
}

int main(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	struct rusage usage;
	pthread_t thread;

	begun[0] = now(CLOCK_MONOTONIC);
	if (pthread_create(&thread, NULL, hold, NULL))
		return 1;
	while (!poll(&input, 1, 20)) {
		spin();
		touch();
		allocate();
		take(0, 1000);
	}
	over = 1;
	pthread_join(thread, NULL);
	used[0] = now(CLOCK_THREAD_CPUTIME_ID);
	ended[0] = now(CLOCK_MONOTONIC);
	getrusage(RUSAGE_SELF, &usage);
	printf("cpu %ld\noff_cpu %ld\nfaults %ld\nalloc %ld\nlock %ld\n", used[0] + used[1],
	       ended[0] - begun[0] - used[0] + ended[1] - begun[1] - used[1], usage.ru_minflt + usage.ru_majflt, bytes, locked[0] + locked[1]);
}
