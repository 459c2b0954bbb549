/*
 * Replaces NVIDIA's library on machines without one. The functions
 * have the same names and parameters, and allocate host memory.
 */
#include <stdlib.h>

int cuMemAlloc_v2(unsigned long long *p, size_t n)
{
	*p = (unsigned long long)malloc(n);
	return 0;
}

int cuMemAllocHost_v2(void **p, size_t n)
{
	*p = malloc(n);
	return 0;
}

int cuMemAllocManaged(unsigned long long *p, size_t n, unsigned int flags)
{
	return cuMemAlloc_v2(p, n);
}

int cuMemAllocPitch_v2(unsigned long long *p, size_t *pitch, size_t width, size_t height, unsigned int size)
{
	*pitch = width;
	return cuMemAlloc_v2(p, width * height);
}
