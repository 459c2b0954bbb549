/*
 * Allocates 1 MiB at a time with the stack pointer near the end of
 * a page, before the next page was ever used. Then it allocates
 * more bytes than 32 bits can count, without touching them.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NOINLINE __attribute__((noinline, noclone))

#define PAGE 4096ul
#define USED (64 * PAGE)

static void *volatile kept;

NOINLINE void use_stack(void)
{
	char used[USED];

	memset(used, 1, sizeof(used));
	__asm__ volatile("" : : "r"(used) : "memory");
}

NOINLINE void allocate_at_page_end(void)
{
	uintptr_t sp = (uintptr_t)alloca(16);

	/* The call itself takes some bytes, and alloca may take more than requested. */
	sp = (uintptr_t)alloca((sp - 64) % PAGE);
	if (sp % PAGE < 16 || sp % PAGE > 96 ||
	    madvise((void *)(sp - sp % PAGE - USED / 2), USED / 2, MADV_DONTNEED))
		abort();
	kept = malloc(1 << 20);
	free(kept);
}

NOINLINE void allocate_gigabytes(void)
{
	kept = calloc(3, 5ul << 30);
	free(kept);
	__asm__ volatile("" ::: "memory");
}

int main(void)
{
	printf("ready\n");
	fflush(stdout);
	getchar();
	for (int i = 0; i < 100; i++) {
		use_stack();
		allocate_at_page_end();
	}
	for (int i = 0; i < 4; i++)
		allocate_gigabytes();
	printf("allocated\n");
	fflush(stdout);
	getchar();
	return 0;
}
