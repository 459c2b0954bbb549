/* Works in its own function and in the kernel, in turn, until its standard input ends. */
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

static char buffer[1 << 22];

__attribute__((noinline)) void work_here(void)
{
	for (volatile int i = 0; i < 1000000; i++)
		;
}

int main(void)
{
	int zero = open("/dev/zero", O_RDONLY);
	char byte;

	prctl(PR_SET_NAME, "both");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		work_here();
		for (int i = 0; i < 4; i++)
			if (read(zero, buffer, sizeof buffer) < 0)
				return 1;
		usleep(2000);
	}
	return 0;
}
