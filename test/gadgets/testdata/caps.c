/* Uses a capability until its standard input ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

/* See waits.c for the reason for this function. */
__attribute__((noinline)) static int change_root(void)
{
	return chroot("/");
}

__attribute__((noinline)) void need_capability(void)
{
	if (change_root())
		_exit(1);
}

int main(void)
{
	char byte;

	prctl(PR_SET_NAME, "caps");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		need_capability();
		usleep(20000);
	}
	return 0;
}
