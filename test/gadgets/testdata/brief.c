/*
 * Repeatedly starts a process for about 30 ms of work, until its standard
 * input ends. With the path of a file, it first moves there: cgroup.procs.
 * A second argument names the thread of the started processes.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline)) void work(void)
{
	for (volatile int i = 0; i < 10000000; i++)
		;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double longest = 0;
	char byte;

	if (argc > 1 && *argv[1]) {
		int fd = open(argv[1], O_WRONLY);

		if (fd < 0 || write(fd, "0", 1) != 1) {
			perror(argv[1]);
			return 1;
		}
		close(fd);
	}
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		double start = now();
		pid_t pid = fork();

		if (!pid) {
			prctl(PR_SET_NAME, argc > 2 ? argv[2] : "brief-child");
			work();
			usleep(2000); /* a wait */
			_exit(0);
		}
		if (pid < 0 || waitpid(pid, NULL, 0) != pid) {
			perror("fork");
			return 1;
		}
		if (now() - start > longest)
			longest = now() - start;
		usleep(100000);
	}
	printf("%.0f\n", longest * 1000);
	return 0;
}
