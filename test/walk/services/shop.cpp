// A shop that keeps an account of the work of each of its functions: see ../doc.go.
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace shop {

using Amounts = std::map<std::string, double>;
std::map<std::string, Amounts> account{{"cpu", {}}, {"offcpu", {}}, {"lock", {}}, {"alloc", {}}, {"pagefault", {}}};
std::mutex accounting, stock;

void add(const char *question, const char *name, double amount)
{
	std::lock_guard<std::mutex> lock(accounting);
	account[question][name] += amount;
}

double seconds(clockid_t clock)
{
	timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

long faults()
{
	rusage u;
	getrusage(RUSAGE_THREAD, &u);
	return u.ru_minflt;
}

// call calls a function and accounts for what its thread did meanwhile.
void call(const char *name, void (*function)())
{
	double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
	long before = faults();
	function();
	cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
	add("cpu", name, cpu);
	add("offcpu", name, seconds(CLOCK_MONOTONIC) - wall - cpu);
	add("pagefault", name, faults() - before);
}

volatile unsigned sink;

__attribute__((noinline)) void price_order()
{
	unsigned total = 1;
	for (unsigned i = 0; i < 36'000'000; i++)
		total = total * 31 + i;
	sink = total;
	asm volatile("");
}

__attribute__((noinline)) void render_invoice()
{
	std::string text;
	for (int i = 0; i < 1'200'000; i++)
		text = std::to_string(i);
	sink = text.size();
}

__attribute__((noinline)) void ask_bank()
{
	usleep(30'000);
	asm volatile("");
}

__attribute__((noinline)) void ask_stock()
{
	poll(nullptr, 0, 10);
	asm volatile("");
}

void take_lock(const char *name)
{
	double before = seconds(CLOCK_MONOTONIC);
	stock.lock();
	add("lock", name, seconds(CLOCK_MONOTONIC) - before);
	stock.unlock();
}

__attribute__((noinline)) void book_order()
{
	for (int i = 0; i < 3; i++) {
		take_lock("book_order");
		usleep(1'000);
	}
}

__attribute__((noinline)) void refund_order()
{
	take_lock("refund_order");
	asm volatile("");
}

void keep(const char *name, size_t size)
{
	std::vector<std::unique_ptr<char[]>> kept;
	kept.reserve(1000);
	for (int i = 0; i < 1000; i++)
		kept.emplace_back(new char[size]);
	add("alloc", name, 1000.0 * (size + sizeof(kept[0])));
}

// keep_basket allocates 4 MB, keep_receipt 1 MB.
__attribute__((noinline)) void keep_basket()
{
	keep("keep_basket", 4000);
	asm volatile(""); // no tail call, so that the function is on the stack
}

__attribute__((noinline)) void keep_receipt()
{
	keep("keep_receipt", 1000);
	asm volatile("");
}

void touch(size_t pages)
{
	size_t page = sysconf(_SC_PAGESIZE);
	auto fresh = static_cast<char *>(mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	for (size_t i = 0; i < pages; i++)
		fresh[i * page] = 1;
	munmap(fresh, pages * page);
}

__attribute__((noinline)) void load_catalogue()
{
	touch(3000);
	asm volatile("");
}

__attribute__((noinline)) void load_prices()
{
	touch(1000);
	asm volatile("");
}

__attribute__((noinline)) void count_stock()
{
	std::lock_guard<std::mutex> lock(stock);
	usleep(4'000);
}

__attribute__((noinline)) void rest()
{
	usleep(2'000);
	asm volatile("");
}

void warehouse()
{
	for (;;) {
		call("count_stock", count_stock);
		call("rest", rest);
	}
}

#define CALL(function) call(#function, function)

void serve()
{
	for (;;) {
		CALL(price_order);
		CALL(render_invoice);
		CALL(ask_bank);
		CALL(ask_stock);
		CALL(book_order);
		CALL(refund_order);
		CALL(keep_basket);
		CALL(keep_receipt);
		CALL(load_catalogue);
		CALL(load_prices);
	}
}

void print()
{
	std::lock_guard<std::mutex> lock(accounting);
	std::string text;
	for (const auto &[question, amounts] : account) {
		text += (text.empty() ? "{\"" : ",\"") + question + "\":{";
		for (bool first = true; const auto &[name, amount] : amounts) {
			text += (first ? "\"" : ",\"") + name + "\":" + std::to_string(amount);
			first = false;
		}
		text += "}";
	}
	std::cout << text << "}" << std::endl;
}

} // namespace shop

int main()
{
	std::thread(shop::warehouse).detach();
	std::thread(shop::serve).detach();
	for (std::string line; std::getline(std::cin, line);)
		shop::print();
	_exit(0);
}
