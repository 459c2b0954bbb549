/*
 * libjvm.so KIND: looks like the library of a Java virtual machine, with its tables of structures. With "huge", an entry
 * has a tebibyte; with "endless", they have 2^37 meaningless entries. Only its child has them, before it burns CPU time.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

unsigned long gHotSpotVMStructs, gHotSpotVMStructEntryArrayStride, gHotSpotVMStructEntryTypeNameOffset,
	gHotSpotVMStructEntryFieldNameOffset, gHotSpotVMStructEntryOffsetOffset, gHotSpotVMStructEntryAddressOffset,
	gHotSpotVMTypes, gHotSpotVMTypeEntryArrayStride, gHotSpotVMTypeEntryTypeNameOffset, gHotSpotVMTypeEntrySizeOffset;

static volatile unsigned long sink;

int main(int argc, char **argv)
{
	const unsigned long part = 1UL << 26, parts = 16384;
	unsigned long table = (unsigned long)&gHotSpotVMTypes, stride = 1UL << 40;
	if (argc != 2)
		return 2;
	if (strcmp(argv[1], "huge")) {
		/* This maps the same memory repeatedly, full of pointers that lead nowhere. */
		int fd = memfd_create("table", 0);
		char *at = mmap(NULL, part * parts, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (fd < 0 || ftruncate(fd, part) || at == MAP_FAILED) {
			perror("table");
			return 1;
		}
		for (unsigned long i = 0; i < parts; i++) {
			if (mmap(at + i * part, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
				perror("mmap");
				return 1;
			}
		}
		memset(at, 1, part);
		table = (unsigned long)at;
		stride = 8;
	}
	if (fork() == 0) {
		gHotSpotVMTypes = table;
		gHotSpotVMTypeEntryArrayStride = stride;
		for (;; usleep(50000)) /* this leaves CPU time for the reader */
			for (long i = 0; i < 20000000; i++)
				sink++;
	}
	return wait(NULL) < 0;
}
