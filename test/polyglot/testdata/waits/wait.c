/*
 * Waits 60, 30 and 10 % of its time in three functions, for the
 * given number of rounds. Then it prints the nanoseconds in each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long spent[3];

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}

static void wait(int which, long ms)
{
	struct timespec t = { 0, ms * 1000000 };
	long begin = now();
	clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
	spent[which] += now() - begin;
}

/* The empty statement prevents a tail call, which would remove the function from the stack. */
#define HERE __asm__ volatile("")
__attribute__((noinline)) void heavy(void) { wait(0, 180); HERE; }
__attribute__((noinline)) void light(void) { wait(1, 90); HERE; }
__attribute__((noinline)) void rest(void) { wait(2, 30); HERE; }
__attribute__((noinline)) void work(void) { heavy(); light(); rest(); HERE; }

int main(int argc, char **argv)
{
	for (int rounds = atoi(argv[1]); rounds > 0; rounds--)
		work();
	printf("%ld %ld %ld\n", spent[0], spent[1], spent[2]);
}
