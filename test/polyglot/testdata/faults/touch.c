/*
 * Touches fresh pages in three functions, 600, 300 and 100 a round, for the given number of rounds. Then it prints each function's number.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static long touched[3];

static void touch(int which, long pages)
{
	char *fresh = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (long i = 0; i < pages; i++)
		((volatile char *)fresh)[i * 4096] = 1;
	munmap(fresh, pages * 4096);
	touched[which] += pages;
}

/* The empty statement prevents a tail call, which would remove the function from the stack. */
#define HERE __asm__ volatile("")
__attribute__((noinline)) void heavy(void) { touch(0, 600); HERE; }
__attribute__((noinline)) void light(void) { touch(1, 300); HERE; }
__attribute__((noinline)) void rest(void) { touch(2, 100); HERE; }
__attribute__((noinline)) void work(void) { heavy(); light(); rest(); HERE; }

int main(int argc, char **argv)
{
	for (int rounds = atoi(argv[1]); rounds > 0; rounds--) {
		work();
		usleep(60000);
	}
	printf("%ld %ld %ld\n", touched[0], touched[1], touched[2]);
}
