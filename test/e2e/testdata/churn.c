// SPDX-License-Identifier: Apache-2.0
/*
 * Goes through 65,536 different stacks until its standard input ends, each
 * for a millisecond of CPU time. A stack has 16 calls of even or odd, one
 * for each bit of a counter. Compile it with -O0 and frame pointers.
 */
#include <poll.h>
#include <stdint.h>
#include <time.h>

static volatile uint64_t sink;

void odd(unsigned bits, int depth);

static void spin(void)
{
	struct timespec start, now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
	do {
		for (int i = 0; i < 2000; i++)
			sink += i;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	} while ((now.tv_sec - start.tv_sec) * 1000000000l + now.tv_nsec - start.tv_nsec < 1000000);
}

__attribute__((noinline)) void even(unsigned bits, int depth)
{
	if (depth == 16)
		spin();
	else if (bits & 1)
		odd(bits >> 1, depth + 1);
	else
		even(bits >> 1, depth + 1);
	sink++;
}

__attribute__((noinline)) void odd(unsigned bits, int depth)
{
	if (depth == 16)
		spin();
	else if (bits & 1)
		odd(bits >> 1, depth + 1);
	else
		even(bits >> 1, depth + 1);
	sink++;
}

int main(void)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };

	for (unsigned n = 0; poll(&in, 1, 0) == 0; n++)
		even(n, 0);
	return 0;
}
