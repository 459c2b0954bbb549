/* Opens files until its standard input ends: an existing one and a missing one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * See waits.c for why there is a function in between. The library's open uses the
 * register of the frame pointer for something else, and nothing is left of the stack.
 */
__attribute__((noinline)) static int open_it(const char *name)
{
	return syscall(SYS_openat, AT_FDCWD, name, O_RDONLY);
}

__attribute__((noinline)) void open_present(void)
{
	close(open_it("/dev/null"));
}

__attribute__((noinline)) void open_missing(void)
{
	open_it("/nonexistent");
}

int main(void)
{
	char byte;

	prctl(PR_SET_NAME, "opens");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		open_present();
		open_missing();
		usleep(5000);
	}
	return 0;
}
