/* Burns a CPU in a function that is inlined into its caller, until its standard input ends. */
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile unsigned long sum;

static inline __attribute__((always_inline)) void mix(unsigned long n)
{
	for (unsigned long i = 0; i < n; i++)
		sum = sum * 31 + i;
}

__attribute__((noinline)) void outer(void)
{
	mix(1000000);
}

int main(void)
{
	char byte;

	prctl(PR_SET_NAME, "inlined");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0)
		outer();
	return 0;
}
