/* Works and opens files in a shared library with a symbol table. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noinline)) static void lib_spin(void)
{
	for (volatile int i = 0; i < 2000000; i++)
		;
}

/* See opens.c for the reason for this function. */
__attribute__((noinline)) static int open_it(const char *name)
{
	return syscall(SYS_openat, AT_FDCWD, name, O_RDONLY);
}

__attribute__((noinline)) static void lib_open(void)
{
	open_it("/nonexistent");
}

void lib_work(void)
{
	lib_spin();
	lib_open();
}
