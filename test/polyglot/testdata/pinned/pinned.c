/*
 * pinned allocates, touches memory, sleeps and computes on CPU 0 until it is killed. Its
 * functions' names begin with SIDE. So a stack with functions of two sides mixes two processes.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PASTE(a, b) a##b
#define NAME(side, name) PASTE(side, name)
#define FUNCTION __attribute__((noinline, noclone)) static
#define HERE __asm__ volatile("" ::: "memory")
#define inner NAME(SIDE, _inner)
#define middle NAME(SIDE, _middle)
#define outer NAME(SIDE, _outer)

static void *volatile kept;

FUNCTION void inner(void)
{
	for (int i = 0; i < 20; i++) {
		kept = malloc(5000);
		free(kept);
	}
	for (volatile int i = 0; i < 20000; i++)
		;
	volatile char *p = mmap(NULL, 4 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 4; i++)
		p[i << 12] = 1;
	munmap((void *)p, 4 << 12);
	usleep(100);
	HERE;
}

FUNCTION void middle(void)
{
	inner();
	HERE;
}

FUNCTION void outer(void)
{
	middle();
	HERE;
}

int main(void)
{
	cpu_set_t first;

	CPU_ZERO(&first);
	CPU_SET(0, &first);
	if (sched_setaffinity(0, sizeof(first), &first) || prctl(PR_SET_NAME, "pinned"))
		return 1;
	for (;;)
		outer();
}
