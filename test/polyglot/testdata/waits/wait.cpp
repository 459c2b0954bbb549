// As wait.c, in C++.
#include <chrono>
#include <cstdio>
#include <thread>

using namespace std::chrono;
static long spent[3];

static void wait(int which, int ms)
{
	auto begin = steady_clock::now();
	std::this_thread::sleep_for(milliseconds(ms));
	spent[which] += duration_cast<nanoseconds>(steady_clock::now() - begin).count();
}

__attribute__((noinline)) void heavy() { wait(0, 30); asm volatile(""); }
__attribute__((noinline)) void light() { wait(1, 15); asm volatile(""); }
__attribute__((noinline)) void rest() { wait(2, 5); asm volatile(""); }
__attribute__((noinline)) void work() { heavy(); light(); rest(); asm volatile(""); }

int main()
{
	for (;;) {
		work();
		long now = duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
		std::printf("%ld %ld %ld %ld\n", now, spent[0], spent[1], spent[2]);
		std::fflush(stdout);
	}
}
