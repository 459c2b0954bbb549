/*
 * 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its
 * share. With -DLIBRARY, it is a shared library that only exports load_step; with -DPROGRAM,
 * it is the program that uses this library. Without either, it is a program by itself.
 */
#include <stdio.h>
#include <time.h>

#define ALONE __attribute__((noipa))

#ifndef PROGRAM
static volatile unsigned sink;

static double cpu(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

ALONE static void heavy(void)
{
	static double used, due;
	for (due += 0.006; used < due;) {
		double start = cpu();
		unsigned x = 1;
		for (unsigned i = 0; i < 100000; i++)
			x = (x * 31 + i) & 0xffffff;
		sink = x;
		used += cpu() - start;
	}
}

ALONE static void light(void)
{
	static double used, due;
	for (due += 0.003; used < due;) {
		double start = cpu();
		unsigned x = 1;
		for (unsigned i = 0; i < 100000; i++)
			x = (x * 31 + i) & 0xffffff;
		sink = x;
		used += cpu() - start;
	}
}

ALONE static void rest(void)
{
	static double used, due;
	for (due += 0.001; used < due;) {
		double start = cpu();
		unsigned x = 1;
		for (unsigned i = 0; i < 100000; i++)
			x = (x * 31 + i) & 0xffffff;
		sink = x;
		used += cpu() - start;
	}
}

ALONE static void work(void)
{
	heavy();
	light();
	rest();
	sink++; /* otherwise the call of rest would become a jump, without this caller */
}
#endif

#ifdef LIBRARY
__attribute__((visibility("default"), noipa)) void load_step(void)
{
	work();
	sink++;
}
#else
#ifdef PROGRAM
void load_step(void);
static volatile unsigned sink;
ALONE static void step(void)
{
	load_step();
	sink++;
}
#else
ALONE static void step(void)
{
	work();
	sink++;
}
#endif

ALONE static void run(void)
{
	step();
	puts("ready");
	fflush(stdout);
	for (;;)
		step();
}

int main(void)
{
	run();
	return 0;
}
#endif
