// Locks with known contention. Each thread adds up its waiting time for its lock.
//
//	locks SECONDS
//
// Threads named warmup contend until the standard input has a line. Then the others, named after
// their locks, contend for the given seconds. At the end, it prints a line for each waiting function:
//
//	FUNCTION NANOSECONDS CALLS
//
// Beside them, a hundred threads without work wait, and are each woken ten times a second.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 128
#define POOL 100
#define PAGE 4096

// The program's function must call the lock's function directly.
#define FUNCTION __attribute__((noinline, noclone)) static
// Prevents a tail call, which would remove the function from the stack.
#define STAY() __asm__ volatile("" ::: "memory")

static atomic_bool warmed_up, done, pool_ended;

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void rest(long ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

// The waits of one function for a lock.
struct counter {
	const char *function;
	atomic_long ns, calls;
};

static struct counter counters[] = {
	{ "take_mutex" }, { "take_short_mutex" }, { "read_table" }, { "write_table" }, { "count_pipe" },
	{ "take_shared" }, { "list_folder" }, { "change_folder" }, { "take_pi_mutex" },
};

#define COUNTED(i, lock)                                                      \
	do {                                                                  \
		long begin = now();                                           \
		lock;                                                         \
		atomic_fetch_add(&counters[i].ns, now() - begin);             \
		atomic_fetch_add(&counters[i].calls, 1);                      \
	} while (0)

static pthread_mutex_t warmup = PTHREAD_MUTEX_INITIALIZER, mutex = PTHREAD_MUTEX_INITIALIZER,
		       short_mutex = PTHREAD_MUTEX_INITIALIZER;
// This mutex has priority inheritance. The kernel reports no contention for it, so only the wait in futex counts.
static pthread_mutex_t pi_mutex;
static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;
// This mutex is in shared memory, so another process could use it.
static pthread_mutex_t *shared;
static int ends[2], folder;
static char folder_path[] = "/tmp/locks-XXXXXX";

FUNCTION void take_warmup(void)
{
	pthread_mutex_lock(&warmup);
	STAY();
}

FUNCTION void take_mutex(void)
{
	pthread_mutex_lock(&mutex);
	STAY();
}

FUNCTION void take_short_mutex(void)
{
	pthread_mutex_lock(&short_mutex);
	STAY();
}

FUNCTION void take_pi_mutex(void)
{
	pthread_mutex_lock(&pi_mutex);
	STAY();
}

FUNCTION void take_shared(void)
{
	pthread_mutex_lock(shared);
	STAY();
}

FUNCTION void read_table(void)
{
	pthread_rwlock_rdlock(&table);
	STAY();
}

FUNCTION void write_table(void)
{
	pthread_rwlock_wrlock(&table);
	STAY();
}

// Waits for the pipe's mutex in the kernel, and holds it only for a moment.
FUNCTION void count_pipe(void)
{
	int n;

	if (ioctl(ends[0], FIONREAD, &n))
		abort();
	STAY();
}

// Holds the pipe's mutex until provide_page has filled in the page.
FUNCTION void fill_pipe(char *page)
{
	char bytes[PAGE];

	if (write(ends[1], page, PAGE) != PAGE || read(ends[0], bytes, PAGE) != PAGE || madvise(page, PAGE, MADV_DONTNEED))
		abort();
	STAY();
}

// Waits as a reader for the folder's read-write semaphore in the kernel. All entries have been read.
FUNCTION void list_folder(void)
{
	char entries[PAGE];

	if (getdents64(folder, entries, PAGE) < 0)
		abort();
	STAY();
}

// Waits as a writer for the same semaphore.
FUNCTION void change_folder(void)
{
	if (fchmod(folder, 0700))
		abort();
	STAY();
}

// Holds the semaphore as a reader until provide_page has filled in the page.
FUNCTION void hold_folder(char *page)
{
	int fd = open(folder_path, O_RDONLY | O_DIRECTORY);

	if (fd < 0 || getdents64(fd, page, PAGE) <= 0 || close(fd) || madvise(page, PAGE, MADV_DONTNEED))
		abort();
	STAY();
}

static int faults;

// Returns a page that causes a page fault each time the kernel uses it. provide_page
// handles the fault.
static char *missing_page(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { { (unsigned long)page, PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };

	faults = syscall(SYS_userfaultfd, 0);
	if (page == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
		return NULL;
	return page;
}

static void *warm_up(void *arg)
{
	while (!warmed_up) {
		take_warmup();
		rest(2000000);
		pthread_mutex_unlock(&warmup);
	}
	return arg;
}

static void *use_mutex(void *arg)
{
	while (!done) {
		COUNTED(0, take_mutex());
		rest(4000000);
		pthread_mutex_unlock(&mutex);
		rest(2000000);
	}
	return arg;
}

static void *use_short_mutex(void *arg)
{
	while (!done) {
		COUNTED(1, take_short_mutex());
		rest(200000);
		pthread_mutex_unlock(&short_mutex);
		rest(50000);
	}
	return arg;
}

static void *use_pi_mutex(void *arg)
{
	while (!done) {
		COUNTED(8, take_pi_mutex());
		rest(8000000);
		pthread_mutex_unlock(&pi_mutex);
		rest(4000000);
	}
	return arg;
}

static void *use_shared(void *arg)
{
	while (!done) {
		COUNTED(5, take_shared());
		rest(8000000);
		pthread_mutex_unlock(shared);
		rest(4000000);
	}
	return arg;
}

static void *use_table(void *arg)
{
	while (!done) {
		COUNTED(2, read_table());
		rest(5000000);
		pthread_rwlock_unlock(&table);
		rest(3000000);
	}
	return arg;
}

static void *change_table(void *arg)
{
	while (!done) {
		COUNTED(3, write_table());
		rest(8000000);
		pthread_rwlock_unlock(&table);
		rest(2000000);
	}
	return arg;
}

static void *look_at_pipe(void *arg)
{
	while (!done) {
		COUNTED(4, count_pipe());
		rest(2000000);
	}
	return arg;
}

static void *use_pipe(void *page)
{
	while (!done) {
		fill_pipe(page);
		hold_folder(page);
		rest(3000000);
	}
	return page;
}

static void *look_at_folder(void *arg)
{
	while (!done) {
		COUNTED(6, list_folder());
		rest(1000000);
	}
	return arg;
}

static void *use_folder(void *arg)
{
	while (!done) {
		COUNTED(7, change_folder());
		rest(1000000);
	}
	return arg;
}

static void *provide_page(void *page)
{
	struct uffdio_zeropage zero = { { (unsigned long)page, PAGE }, 0, 0 };
	struct uffd_msg fault;

	while (read(faults, &fault, sizeof(fault)) == sizeof(fault)) {
		rest(8000000);
		if (ioctl(faults, UFFDIO_ZEROPAGE, &zero))
			abort();
	}
	return page;
}

static pthread_mutex_t pool = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static sem_t jobs;

FUNCTION void wait_for_work(void)
{
	pthread_mutex_lock(&pool);
	pthread_cond_wait(&work, &pool);
	pthread_mutex_unlock(&pool);
	STAY();
}

FUNCTION void wait_for_job(void)
{
	while (sem_wait(&jobs) && errno == EINTR)
		;
	STAY();
}

static void *pool_of_work(void *arg)
{
	while (!done)
		wait_for_work();
	return arg;
}

static void *pool_of_jobs(void *arg)
{
	while (!done)
		wait_for_job();
	return arg;
}

static void *wake_pool(void *arg)
{
	while (!pool_ended) {
		rest(2000000);
		if (done)
			pthread_cond_broadcast(&work);
		else
			pthread_cond_signal(&work);
		sem_post(&jobs);
	}
	return arg;
}

static int make_pi_mutex(void)
{
	pthread_mutexattr_t attr;

	return pthread_mutexattr_init(&attr) || pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT) || pthread_mutex_init(&pi_mutex, &attr);
}

static int make_shared(void)
{
	pthread_mutexattr_t attr;
	int file = memfd_create("shop lock", 0);

	if (file < 0 || ftruncate(file, PAGE))
		return -1;
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (shared == MAP_FAILED || pthread_mutexattr_init(&attr) || pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED))
		return -1;
	// The futex word is at the start of the mutex.
	shared = (void *)((char *)shared + 256);
	return pthread_mutex_init(shared, &attr);
}

static pthread_t threads[MAX_THREADS];
static int started;

static void start(const char *name, int count, void *(*run)(void *), void *arg)
{
	// A thread inherits the name of its creator.
	prctl(PR_SET_NAME, name);
	for (int i = 0; i < count; i++)
		if (started == MAX_THREADS || pthread_create(&threads[started++], NULL, run, arg))
			abort();
	prctl(PR_SET_NAME, "locks");
}

int main(int argc, char **argv)
{
	char line[16], *page = missing_page();
	pthread_t provider;

	if (argc != 2 || !page || make_pi_mutex() || make_shared() || !mkdtemp(folder_path) || (folder = open(folder_path, O_RDONLY | O_DIRECTORY)) < 0 || pipe(ends) || sem_init(&jobs, 0, 0) || pthread_create(&provider, NULL, provide_page, page)) {
		perror("locks");
		return 1;
	}
	start("warmup", 2, warm_up, NULL);
	if (!fgets(line, sizeof(line), stdin)) {
		rmdir(folder_path);
		return 0;
	}
	warmed_up = true;
	start("mutex", 3, use_mutex, NULL);
	start("short", 2, use_short_mutex, NULL);
	start("table", 2, use_table, NULL);
	start("table", 1, change_table, NULL);
	start("pipe", 2, look_at_pipe, NULL);
	start("pipe", 1, use_pipe, page);
	start("folder", 1, look_at_folder, NULL);
	start("folder", 1, use_folder, NULL);
	start("shared", 2, use_shared, NULL);
	start("pi", 2, use_pi_mutex, NULL);
	start("pool", POOL / 2, pool_of_work, NULL);
	start("pool", POOL / 2, pool_of_jobs, NULL);
	start("waker", 1, wake_pool, NULL);
	rest(atol(argv[1]) * 1000000000);
	done = true;
	// The last thread wakes the others.
	for (int i = 0; i < started; i++) {
		pool_ended = i == started - 1;
		pthread_join(threads[i], NULL);
	}
	rmdir(folder_path);
	for (int i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
		printf("%s %ld %ld\n", counters[i].function, counters[i].ns, counters[i].calls);
	return 0;
}
