/* Opens files until its standard input ends: an existing one and a missing one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * See waits.c for the reason for this function. The library's open also uses the
 * frame pointer's register for other data, which would lose the whole stack.
 */
__attribute__((noinline)) static int open_it(const char *name)
{
	return syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
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

	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		open_present();
		open_missing();
		usleep(5000);
	}
	return 0;
}
