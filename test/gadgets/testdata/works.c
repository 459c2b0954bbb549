/* Has a shared library work until its standard input ends. */
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

void lib_work(void);

int main(void)
{
	char byte;

	prctl(PR_SET_NAME, "works");
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		lib_work();
		usleep(5000);
	}
	return 0;
}
