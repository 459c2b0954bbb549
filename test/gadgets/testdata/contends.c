/* Three threads contend for a mutex until the standard input ends. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int done;

__attribute__((noinline)) void take_mutex(void)
{
	pthread_mutex_lock(&mutex);
}

static void *contend(void *arg)
{
	prctl(PR_SET_NAME, "contends");
	while (!done) {
		take_mutex();
		usleep(2000);
		pthread_mutex_unlock(&mutex);
		usleep(1000);
	}
	return arg;
}

int main(void)
{
	pthread_t threads[3];
	char byte;

	for (int i = 0; i < 3; i++)
		if (pthread_create(&threads[i], NULL, contend, NULL))
			return 1;
	while (read(0, &byte, 1) > 0)
		;
	done = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
