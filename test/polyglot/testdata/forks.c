/*
 * forks N FIRST [MS]: starts N processes, eight at a time. Each burns CPU for a few
 * milliseconds, unmaps its own code, or ends at once. Their names have escapes for a terminal,
 * and numbers from FIRST on. With MS, each burns at least that many milliseconds of CPU time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sink;

static void evil_child(int i, int first, int ms)
{
	static const char *names[] = {"\033[2J\033[31mevil", "evil\n\r\007\b", "evil\xff\xfe\x80", "evil\";{}[]'", "evil%s%n%x"};
	prctl(PR_SET_NAME, names[(i + first) % 5]);
	for (unsigned long n = 0; n < 2000000UL + 300000UL * (i % 7); n++)
		sink += n;
	while (clock() / (CLOCKS_PER_SEC / 1000) < ms)
		sink++;
	if (i % 11 == 0)
		munmap((void *)((unsigned long)&evil_child & ~4095UL), 4096); /* which ends the process */
	_exit(0);
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 100, first = argc > 2 ? atoi(argv[2]) : 0;
	int ms = argc > 3 ? atoi(argv[3]) : 0, running = 0;
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();
		if (pid == 0)
			evil_child(i, first, ms);
		if (pid > 0)
			running++;
		while (running >= 8 && wait(NULL) > 0)
			running--;
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
