/*
 * shares allocates 60, 30 and 10 % of its bytes in three functions, as a separate user, until
 * it is killed. test/vm/malloc_test.go expects these shares. shares.py is the same program in
 * Python.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone)) static
/* Prevents a tail call, which would remove the function from the stack. */
#define STAY() __asm__ volatile("" ::: "memory")

static void *volatile kept;

FUNCTION void heavy(void)
{
	kept = malloc(60000);
	STAY();
}

FUNCTION void light(void)
{
	kept = malloc(30000);
	STAY();
}

FUNCTION void rest(void)
{
	kept = malloc(10000);
	STAY();
}

int main(void)
{
	void (*const functions[])(void) = { heavy, light, rest };

	if (setuid(54321))
		return 1;
	for (;;) {
		for (int i = 0; i < 3; i++) {
			functions[i]();
			free(kept);
		}
		usleep(50000);
	}
}
