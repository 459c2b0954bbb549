/*
 * Uses fresh memory until its standard input ends: it writes to 64
 * pages itself, and the kernel copies a file to 16 more. It prints
 * the number of rounds. With a number, it touches pages in
 * touch_first until it gets a line, then does that number of rounds.
 * Each of these rounds also runs code in a fresh page.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PAGE 4096
#define TOUCHED 64
#define FILLED 16

static char *fresh(int pages)
{
	char *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		abort();
	madvise(p, pages * PAGE, MADV_NOHUGEPAGE);
	return p;
}

__attribute__((noinline)) void touch_pages(void)
{
	char *p = fresh(TOUCHED);

	for (int i = 0; i < TOUCHED; i++)
		p[i * PAGE] = 1;
	munmap(p, TOUCHED * PAGE);
}

__attribute__((noinline)) void touch_first(void)
{
	char *p = fresh(TOUCHED);

	for (int i = 0; i < TOUCHED; i++)
		p[i * PAGE] = 1;
	munmap(p, TOUCHED * PAGE);
	usleep(20000);
}

/* See waits.c for the reason for this function. */
__attribute__((noinline)) static void copy_file(int file, char *p)
{
	if (pread(file, p, FILLED * PAGE, 0) != FILLED * PAGE)
		abort();
}

__attribute__((noinline)) void fill_pages(int file)
{
	char *p = fresh(FILLED);

	copy_file(file, p);
	munmap(p, FILLED * PAGE);
}

static void code(void)
{
}

/* See waits.c for why there is a function in between. */
__attribute__((noinline)) static void run(void (*page)(void))
{
	page();
}

__attribute__((noinline)) void run_page(int file)
{
	void *p = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);

	if (p == MAP_FAILED)
		abort();
	run(p);
	munmap(p, PAGE);
}

/* Returns a file without a name that is long enough. */
static int make_file(void)
{
	int file = memfd_create("faults", 0);

	if (file < 0 || ftruncate(file, FILLED * PAGE) || pwrite(file, (void *)code, 64, 0) != 64)
		abort();
	return file;
}

int main(int argc, char **argv)
{
	int file = make_file(), limit = argc > 1 ? atoi(argv[1]) : 0;
	long rounds = 0;
	char byte;

	prctl(PR_SET_NAME, "faults");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (limit && read(0, &byte, 1) < 0)
		touch_first();
	while (limit ? rounds < limit : read(0, &byte, 1) != 0) {
		touch_pages();
		fill_pages(file);
		if (limit)
			run_page(file);
		rounds++;
		usleep(20000);
	}
	printf("%ld\n", rounds);
	return 0;
}
