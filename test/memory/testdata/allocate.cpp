// Allocates as a C++ program does, through operator new, and prints its counts like allocate.c.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

namespace shop {

struct Count {
	unsigned long long bytes = 0, calls = 0;
};

static Count large, middle, leaked;
static unsigned long long state = 88172645463325252ull;
void *volatile kept;

static size_t around(size_t mean)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return mean / 2 + state % mean;
}

static void note(Count &c, size_t size)
{
	c.bytes += size;
	c.calls++;
}

struct Order {
	std::vector<char> text;
	explicit Order(size_t size);
};

__attribute__((noinline)) Order::Order(size_t size) : text(size)
{
	note(large, size);
	kept = text.data();
}

template <typename T> __attribute__((noinline)) void fill(size_t n)
{
	std::unique_ptr<T[]> items(new T[n]);
	note(middle, n * sizeof(T));
	kept = items.get();
	asm volatile("" ::: "memory");
}

__attribute__((noinline)) void leak()
{
	size_t size = around(1000);

	note(leaked, size);
	kept = ::operator new(size);
	asm volatile("" ::: "memory");
}

} // namespace shop

static double now()
{
	timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 10;
	long pause = argc > 2 ? atol(argv[2]) : 0, rounds = argc > 3 ? atol(argv[3]) : 0;

	prctl(PR_SET_NAME, "allocate");
	printf("ready\n");
	fflush(stdout);
	getchar();
	for (double begin = now(); now() - begin < seconds || rounds > 0; rounds--) {
		shop::Order order(shop::around(6000));
		for (int i = 0; i < 3; i++)
			shop::fill<double>(shop::around(1000) / 8);
		shop::leak();
		if (pause)
			usleep(pause);
	}
	printf("shop::Order::Order(unsigned long) %llu %llu\n", shop::large.bytes, shop::large.calls);
	printf("void shop::fill<double>(unsigned long) %llu %llu\n", shop::middle.bytes, shop::middle.calls);
	printf("shop::leak() %llu %llu\n", shop::leaked.bytes, shop::leaked.calls);
	fflush(stdout);
	getchar();
}
