/*
 * Until its standard input ends, waits for a different thing in each of its functions. It prints
 * each one's name and nanoseconds. It is compiled without frame pointers, as in distributions.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Waits until another thread ends. main joins that thread. */
static int into[2], sockets[2], full[2], word;
static pthread_t other;

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void nap(long ms)
{
	struct timespec t = { 0, ms * 1000000 };

	nanosleep(&t, NULL);
}

#define WAIT __attribute__((noinline)) static void

/* Prevents a tail call, which would remove the function from the stack. */
#define HERE __asm__ volatile("")

/* The work of a child. It has another name, because the profiler cannot know such a new process. */
static void child(void)
{
	prctl(PR_SET_NAME, "child");
	nap(40);
	_exit(0);
}

WAIT waits_in_futex(void)
{
	struct timespec t = { 0, 60000000 };

	syscall(SYS_futex, &word, FUTEX_WAIT, 0, &t, NULL, 0);
	HERE;
}

WAIT waits_in_sleep(void)
{
	nap(50);
	HERE;
}

WAIT waits_in_poll(void)
{
	poll(NULL, 0, 40);
	HERE;
}

static void *write_later(void *to)
{
	char bytes[4096] = { 0 };

	nap(40);
	if (to == into)
		return (void *)write(into[1], "x", 1);
	if (to == sockets)
		return (void *)write(sockets[1], "x", 1);
	return (void *)read(full[0], bytes, sizeof(bytes));
}

/* Waits for another thread. */
#define ENDED_LATER(by, wait)                                     \
	do {                                                     \
		pthread_create(&other, NULL, write_later, by);   \
		if ((wait) < 0)                                  \
			abort();                                 \
	} while (0)

WAIT waits_in_read(void)
{
	char byte;

	ENDED_LATER(into, read(into[0], &byte, 1));
}

WAIT waits_in_receive(void)
{
	char byte;

	ENDED_LATER(sockets, recv(sockets[0], &byte, 1, 0));
}

WAIT waits_in_write(void)
{
	static char bytes[4096];

	ENDED_LATER(full, write(full[1], bytes, sizeof(bytes)));
}

WAIT waits_in_wait(void)
{
	pid_t pid = fork();

	if (!pid)
		child();
	waitpid(pid, NULL, 0);
	HERE;
}

/* The parent of a vfork cannot be woken by signals. */
WAIT waits_uninterruptible(void)
{
	if (!vfork())
		child();
	HERE;
}

/* Reads a file that has no copy in memory. */
WAIT waits_for_disk(void)
{
	static char block[4096] __attribute__((aligned(4096)));
	int file = open("/proc/self/exe", O_RDONLY | O_DIRECT);

	for (int i = 0; file >= 0 && i < 20; i++)
		if (pread(file, block, sizeof(block), 0) < 0)
			break;
	close(file);
	HERE;
}

/* This thread competes for the same CPU. */
static void *burn(void *end)
{
	while (now() < (long)end)
		;
	return NULL;
}

WAIT waits_preempted(void)
{
	long end = now() + 40000000;

	pthread_create(&other, NULL, burn, (void *)end);
	burn((void *)end);
}

static struct {
	const char *name;
	void (*wait)(void);
	long long spent;
} waits[] = {
	{ "futex", waits_in_futex },
	{ "sleep", waits_in_sleep },
	{ "poll", waits_in_poll },
	{ "read", waits_in_read },
	{ "receive", waits_in_receive },
	{ "write", waits_in_write },
	{ "wait", waits_in_wait },
	{ "uninterruptible", waits_uninterruptible },
	{ "preempted", waits_preempted },
	{ "disk", waits_for_disk },
};
#define KINDS (sizeof(waits) / sizeof(waits[0]))

int main(void)
{
	static char bytes[4096];
	struct pollfd input = { 0, POLLIN, 0 };
	struct rusage usage;
	cpu_set_t cpu;
	size_t i;

	CPU_ZERO(&cpu);
	CPU_SET(sched_getcpu(), &cpu);
	if (sched_setaffinity(0, sizeof(cpu), &cpu) || pipe(into) || pipe(full) ||
	    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		abort();
	fcntl(full[1], F_SETFL, O_NONBLOCK);
	while (write(full[1], bytes, sizeof(bytes)) > 0)
		;
	fcntl(full[1], F_SETFL, 0);
	while (poll(&input, 1, 0) == 0)
		for (i = 0; i < KINDS; i++) {
			long long begin = now();

			waits[i].wait();
			waits[i].spent += now() - begin;
			if (other)
				pthread_join(other, NULL);
			other = 0;
		}
	getrusage(RUSAGE_SELF, &usage);
	for (i = 0; i < KINDS; i++) /* a file system in memory has no disk */
		if (waits[i].wait != waits_for_disk || usage.ru_inblock > 0)
			printf("%s %lld\n", waits[i].name, waits[i].spent);
	return 0;
}
