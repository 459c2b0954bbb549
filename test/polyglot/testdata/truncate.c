/*
 * truncate FILE OFFSET SIZE FIRST SECOND SECONDS: maps SIZE bytes at OFFSET of FILE, a Go
 * program's code. It runs the endless loops at the file offsets FIRST and, after SECONDS, SECOND.
 * In between, it truncates the file after the code, which removes the table of functions.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static sigjmp_buf back;

static void alarmed(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 2;
	long offset = atol(argv[2]), size = atol(argv[3]);
	int fd = open(argv[1], O_RDWR);
	char *code = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, offset);
	if (fd < 0 || code == MAP_FAILED) {
		perror(argv[1]);
		return 1;
	}
	signal(SIGALRM, alarmed);
	if (!sigsetjmp(back, 1)) {
		alarm(atoi(argv[6]));
		((void (*)(void))(code + atol(argv[4]) - offset))();
	}
	if (ftruncate(fd, offset + size)) {
		perror("ftruncate");
		return 1;
	}
	alarm(0);
	if (!sigsetjmp(back, 1)) {
		alarm(120);
		((void (*)(void))(code + atol(argv[5]) - offset))();
	}
	return 0;
}
