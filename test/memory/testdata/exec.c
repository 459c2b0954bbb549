/*
 * Allocates 1 MiB 64 times, and then starts sleep with execve.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *volatile kept;

int main(void)
{
	printf("ready\n");
	fflush(stdout);
	getchar();
	for (int i = 0; i < 64; i++)
		kept = malloc(1 << 20);
	printf("allocated\n");
	fflush(stdout);
	getchar();
	execlp("sleep", "sleep", "60", NULL);
	return 1;
}
