// Like touch.c, in C++.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <thread>

static long touched[3];

struct Fresh {
	volatile char *at;
	long size;
	explicit Fresh(long n) : at(static_cast<volatile char *>(mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))), size(n) {}
	~Fresh() { munmap(const_cast<char *>(at), size); }
};

static void touch(int which, long pages)
{
	Fresh fresh(pages * 4096);
	for (long i = 0; i < pages; i++)
		fresh.at[i * 4096] = 1;
	touched[which] += pages;
}

__attribute__((noinline)) void heavy() { touch(0, 600); asm volatile(""); }
__attribute__((noinline)) void light() { touch(1, 300); asm volatile(""); }
__attribute__((noinline)) void rest() { touch(2, 100); asm volatile(""); }
__attribute__((noinline)) void work() { heavy(); light(); rest(); asm volatile(""); }

int main(int, char **argv)
{
	for (int rounds = std::atoi(argv[1]); rounds > 0; rounds--) {
		work();
		std::this_thread::sleep_for(std::chrono::milliseconds(60));
	}
	std::printf("%ld %ld %ld\n", touched[0], touched[1], touched[2]);
}
