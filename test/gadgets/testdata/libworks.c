/* Works and opens files in a shared library that has its symbol table. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noinline)) static void lib_spin(void)
{
	for (volatile int i = 0; i < 2000000; i++)
		;
}

/* See opens.c for why not open. */
__attribute__((noinline)) static void lib_open(void)
{
	syscall(SYS_openat, AT_FDCWD, "/nonexistent", O_RDONLY);
}

void lib_work(void)
{
	lib_spin();
	lib_open();
}
