// Like wait.c, in C++.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

using namespace std::chrono;
static long spent[3];

static void wait(int which, int ms)
{
	auto begin = steady_clock::now();
	std::this_thread::sleep_for(milliseconds(ms));
	spent[which] += duration_cast<nanoseconds>(steady_clock::now() - begin).count();
}

__attribute__((noinline)) void heavy() { wait(0, 180); asm volatile(""); }
__attribute__((noinline)) void light() { wait(1, 90); asm volatile(""); }
__attribute__((noinline)) void rest() { wait(2, 30); asm volatile(""); }
__attribute__((noinline)) void work() { heavy(); light(); rest(); asm volatile(""); }

int main(int, char **argv)
{
	for (int rounds = std::atoi(argv[1]); rounds > 0; rounds--)
		work();
	std::printf("%ld %ld %ld\n", spent[0], spent[1], spent[2]);
}
