/* Waits 60, 30 and 10 % of its time in three functions, and prints for how long: the time, and the nanoseconds in each since the start. */
#include <stdio.h>
#include <time.h>

static long spent[3];

static long now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}

static void wait(int which, long ms)
{
	struct timespec t = { 0, ms * 1000000 };
	long begin = now(CLOCK_MONOTONIC);
	clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
	spent[which] += now(CLOCK_MONOTONIC) - begin;
}

/* The empty statement keeps the call from being the function's last act, which would leave it out of the stack. */
#define HERE __asm__ volatile("")
__attribute__((noinline)) void heavy(void) { wait(0, 30); HERE; }
__attribute__((noinline)) void light(void) { wait(1, 15); HERE; }
__attribute__((noinline)) void rest(void) { wait(2, 5); HERE; }
__attribute__((noinline)) void work(void) { heavy(); light(); rest(); HERE; }

int main(void)
{
	for (;;) {
		work();
		printf("%ld %ld %ld %ld\n", now(CLOCK_REALTIME), spent[0], spent[1], spent[2]);
		fflush(stdout);
	}
}
