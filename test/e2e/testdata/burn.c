// SPDX-License-Identifier: Apache-2.0
/*
 * Keeps one CPU busy until its standard input ends. It spends 60 % of
 * its CPU time in c_heavy, 30 % in c_light and 10 % in c_kernel,
 * which works in the kernel. c_work calls all of these.
 *
 * Compile it with -O0 and frame pointers, by which the kernel finds callers.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t sink;
static int zeros;
static char buffer[1 << 20]; // large, so that a read takes much longer than entering the kernel

static uint64_t thread_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

__attribute__((noinline)) void c_heavy(void)
{
	for (uint64_t i = 0; i < 300000; i++)
		sink = sink * 31 + i;
}

__attribute__((noinline)) void c_light(void)
{
	for (uint64_t i = 0; i < 300000; i++)
		sink = (sink * 37) ^ i;
}

/*
 * The C library is not compiled with frame pointers, so its read would hide
 * this function from the stack.
 */
static inline __attribute__((always_inline)) long raw_read(int fd, void *to, size_t n)
{
#if defined(__x86_64__)
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"((long)SYS_read), "D"((long)fd), "S"(to), "d"(n)
			 : "rcx", "r11", "memory");
	return ret;
#elif defined(__aarch64__)
	register long nr __asm__("x8") = SYS_read;
	register long x0 __asm__("x0") = fd;
	register void *x1 __asm__("x1") = to;
	register size_t x2 __asm__("x2") = n;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(nr), "r"(x1), "r"(x2) : "memory");
	return x0;
#else
#error "no system call for this architecture"
#endif
}

__attribute__((noinline)) void c_kernel(void)
{
	for (int i = 0; i < 2; i++)
		sink += raw_read(zeros, buffer, sizeof(buffer));
}

__attribute__((noinline)) void c_work(void)
{
	uint64_t until;

	for (until = thread_ms() + 60; thread_ms() < until;)
		c_heavy();
	for (until = thread_ms() + 30; thread_ms() < until;)
		c_light();
	for (until = thread_ms() + 10; thread_ms() < until;)
		c_kernel();
}

int main(void)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };

	zeros = open("/dev/zero", O_RDONLY);
	if (zeros < 0) {
		perror("burn: opening /dev/zero");
		return 1;
	}
	while (poll(&in, 1, 0) == 0)
		c_work();
	return 0;
}
