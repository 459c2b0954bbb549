/*
 * burn [FILE] is the workload: it spins in named functions for ever or until the file exists, and
 * sleeps most of the time so that a dozen of them fit on one CPU. Compile it with frame pointers.
 */
#include <signal.h>
#include <stdint.h>
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

int main(int argc, char **argv)
{
	/* Process 1 of a container ignores signals that it has no handler for. */
	signal(SIGTERM, quit);
	while (argc < 2 || access(argv[1], F_OK)) {
		for (int i = 0; i < 3; i++)
			burn_outer();
		usleep(80000);
	}
	return 0;
}
