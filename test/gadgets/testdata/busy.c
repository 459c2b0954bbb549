/* Burns half of a CPU until its standard input ends. */
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

__attribute__((noinline)) void spin(void)
{
	for (volatile int i = 0; i < 2000000; i++)
		;
}

int main(void)
{
	char byte;

	prctl(PR_SET_NAME, "busy");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		spin();
		usleep(5000);
	}
	return 0;
}
