/*
 * Touches fresh memory 100,000 times a second, in 16 functions in turn,
 * until its standard input ends. It prints the number, and the nanoseconds.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 1000 /* every 10 ms */

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

__attribute__((noinline)) static int touch(char *p, int n)
{
	for (int i = 0; i < n; i++)
		p[i * PAGE] = 1;
	return n;
}

#define TOUCH(i) \
	__attribute__((noinline)) int touch_##i(char *p, int n) { return touch(p, n) + 1; }
TOUCH(0) TOUCH(1) TOUCH(2) TOUCH(3) TOUCH(4) TOUCH(5) TOUCH(6) TOUCH(7)
TOUCH(8) TOUCH(9) TOUCH(10) TOUCH(11) TOUCH(12) TOUCH(13) TOUCH(14) TOUCH(15)

static int (*const touches[])(char *, int) = {
	touch_0, touch_1, touch_2,  touch_3,  touch_4,	touch_5,  touch_6,  touch_7,
	touch_8, touch_9, touch_10, touch_11, touch_12, touch_13, touch_14, touch_15,
};

int main(void)
{
	char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long long start = now(), next = start, rounds = 0;
	char byte;

	if (p == MAP_FAILED)
		abort();
	madvise(p, PAGES * PAGE, MADV_NOHUGEPAGE);
	prctl(PR_SET_NAME, "flood");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		touches[rounds++ % 16](p, PAGES);
		madvise(p, PAGES * PAGE, MADV_DONTNEED);
		next += 10000000;
		if (next > now()) {
			struct timespec t = { next / 1000000000, next % 1000000000 };

			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
		}
	}
	printf("%lld %lld\n", rounds * PAGES, now() - start);
	return 0;
}
