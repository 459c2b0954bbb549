// hash_orders uses half of the CPU time, sort_orders 30 % and render_invoices
// 20 %.
#include <time.h>

static volatile unsigned long sink;

#define WORK(name)                                                      \
	__attribute__((noinline)) static void name(unsigned long n)     \
	{                                                               \
		unsigned long h = sink;                                 \
		for (unsigned long i = 0; i < n; i++)                   \
			h = (h ^ i) * 0x9e3779b97f4a7c15UL + (h >> 29); \
		sink = h;                                               \
	}
WORK(hash_orders)
WORK(sort_orders)
WORK(render_invoices)

static void spend(void (*work)(unsigned long), int percent)
{
	clock_t until = clock() + percent * (CLOCKS_PER_SEC / 1000);
	while (clock() < until)
		work(1000000);
}

int main(void)
{
	for (;;) {
		spend(hash_orders, 50);
		spend(sort_orders, 30);
		spend(render_invoices, 20);
	}
}
