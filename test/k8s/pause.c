/* pause holds a pod's namespaces: it waits, reaps orphaned processes, and ends on a signal. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int sig)
{
	(void)sig;
	while (waitpid(-1, 0, WNOHANG) > 0)
		;
}

static void quit(int sig)
{
	(void)sig;
	_exit(0);
}

int main(void)
{
	signal(SIGCHLD, reap);
	signal(SIGTERM, quit);
	signal(SIGINT, quit);
	for (;;)
		pause();
}
