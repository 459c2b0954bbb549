/*
 * burn [FILE] is the workload: it spins in named functions for ever or until the file exists, and
 * sleeps most of the time so that a dozen of them fit on one CPU. Compile it with frame pointers.
 *
 * burn for SECONDS spins without sleep for so long, under the name of the host, which in a pod is the pod's.
 */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

volatile uint64_t sink;

static void quit(int sig)
{
	(void)sig;
	_exit(0);
}

__attribute__((noinline)) void burn_leaf(void)
{
	for (int i = 0; i < 2000000; i++)
		sink += i * 2654435761u;
	sink++;
}

__attribute__((noinline)) void burn_middle(void)
{
	burn_leaf();
	sink++;
}

__attribute__((noinline)) void burn_outer(void)
{
	burn_middle();
	sink++;
}

static int burn_for(long seconds)
{
	char name[64] = "";
	struct timespec start, now;

	gethostname(name, sizeof(name) - 1);
	prctl(PR_SET_NAME, name);
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		burn_outer();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - start.tv_sec) * 1000000000l + now.tv_nsec - start.tv_nsec < seconds * 1000000000l);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "for"))
		return burn_for(atol(argv[2]));
	/* Process 1 of a container ignores signals that it has no handler for. */
	signal(SIGTERM, quit);
	while (argc < 2 || access(argv[1], F_OK)) {
		for (int i = 0; i < 3; i++)
			burn_outer();
		usleep(80000);
	}
	return 0;
}
