/* When it has read a line, it starts a process that allocates memory. The process does not call execve. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) void *allocate_in_child(void)
{
	void *volatile p = malloc(1 << 20); /* no tail call */

	return p;
}

int main(void)
{
	puts("ready");
	fflush(stdout);
	getchar();
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			char *volatile p = allocate_in_child();

			free(p);
			usleep(1000);
		}
	}
	wait(NULL);
	return 0;
}
