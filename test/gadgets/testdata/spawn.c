/*
 * Starts short processes one after another until its standard input
 * ends, as on a machine that compiles. Each touches 60 pages, every
 * page at the end of another call chain, so hardly any faults are
 * alike. It prints the number of processes, and the nanoseconds.
 *
 *	spawn N
 *
 * runs N of them at a time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 60
#define DEPTH 20

static char *memory;

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Not a tail call, which would remove the caller's frame. */
__attribute__((noinline)) static int touch(int page)
{
	memory[page * PAGE] = 1;
	return page;
}

static int even(unsigned path, int depth, int page);

__attribute__((noinline)) static int odd(unsigned path, int depth, int page)
{
	if (!depth)
		return touch(page) + 1;
	return (path & 1 ? odd(path >> 1, depth - 1, page) : even(path >> 1, depth - 1, page)) + 1;
}

__attribute__((noinline)) static int even(unsigned path, int depth, int page)
{
	if (!depth)
		return touch(page) + 2;
	return (path & 1 ? odd(path >> 1, depth - 1, page) : even(path >> 1, depth - 1, page)) + 2;
}

static void live(unsigned seed)
{
	for (int page = 0; page < PAGES; page++)
		even(rand_r(&seed), DEPTH, page);
	_exit(0);
}

int main(int argc, char **argv)
{
	int at_a_time = argc > 1 ? atoi(argv[1]) : 2, running = 0;
	long long start = now(), born = 0;
	char byte;

	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		abort();
	madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE);
	prctl(PR_SET_NAME, "spawn");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		while (running < at_a_time) {
			pid_t pid = fork();

			if (pid < 0)
				abort();
			if (!pid)
				live(born);
			born++;
			running++;
		}
		if (wait(NULL) > 0)
			running--;
	}
	printf("%lld %lld\n", born, now() - start);
	return 0;
}
