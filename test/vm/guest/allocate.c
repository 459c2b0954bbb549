/*
 * allocate NAME is the program in the containers of memory.sh. Until the file /counts/stop exists, one
 * thread allocates and two others contend for a mutex. Then the program writes these lines to
 * /counts/NAME:
 *
 *	rounds N                  of allocations
 *	probed N                  of these, with a probe at malloc
 *	probed-at-the-end 0
 *	FUNCTION BYTES CALLS      allocated while there was a probe
 *	take_mutex NANOSECONDS CALLS
 *
 * A probe is a breakpoint in the first byte of the function. A process without one has no cost.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BREAKPOINT 0xcc /* of x86 */
#define FUNCTION __attribute__((noinline, noclone)) static
/* Prevents a tail call, which would remove the function from the stack. */
#define STAY() __asm__ volatile("" ::: "memory")

struct count {
	unsigned long sum, calls;
};

static const volatile unsigned char *entry;
static struct count much, little;
static atomic_ulong waited, waits;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *volatile kept;

static void allocate(struct count *count, size_t size)
{
	if (*entry == BREAKPOINT) {
		count->sum += size;
		count->calls++;
	}
	kept = malloc(size);
	free(kept);
	STAY();
}

FUNCTION void allocate_much(void)
{
	allocate(&much, 30000);
	STAY();
}

FUNCTION void allocate_little(void)
{
	allocate(&little, 10000);
	STAY();
}

static unsigned long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ul + t.tv_nsec;
}

FUNCTION void take_mutex(void)
{
	pthread_mutex_lock(&mutex);
	STAY();
}

static void *contend(void *unused)
{
	for (;;) {
		unsigned long begin = now();

		take_mutex();
		waited += now() - begin;
		waits++;
		usleep(20000);
		pthread_mutex_unlock(&mutex);
		usleep(10000);
	}
	return unused;
}

int main(int argc, char **argv)
{
	unsigned long rounds = 0, probed = 0;
	char part[64], path[64];
	pthread_t thread;
	int fd;

	entry = dlsym(RTLD_DEFAULT, "malloc");
	if (argc != 2 || !entry)
		return 1;
	for (int i = 0; i < 2; i++)
		if (pthread_create(&thread, NULL, contend, NULL))
			return 1;
	for (; access("/counts/stop", F_OK); rounds++) {
		probed += *entry == BREAKPOINT;
		allocate_much();
		allocate_little();
		usleep(20000);
	}
	snprintf(part, sizeof(part), "/counts/%s.part", argv[1]);
	snprintf(path, sizeof(path), "/counts/%s", argv[1]);
	fd = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	dprintf(fd, "rounds %lu\nprobed %lu\nprobed-at-the-end %d\n", rounds, probed, *entry == BREAKPOINT);
	dprintf(fd, "allocate_much %lu %lu\nallocate_little %lu %lu\n", much.sum, much.calls, little.sum, little.calls);
	dprintf(fd, "take_mutex %lu %lu\n", (unsigned long)waited, (unsigned long)waits);
	/* After the rename, the file exists with its complete content. */
	return rename(part, path);
}
