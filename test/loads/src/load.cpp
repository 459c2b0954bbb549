// 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest:
// each works until it has its share. libstdc++ does the actual work.
#include <ctime>
#include <iostream>
#include <sstream>
#include <string>

#define ALONE __attribute__((noipa))

namespace load {

static volatile unsigned sink;

static double cpu()
{
	timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

struct Part {
	double used = 0, due = 0;
};

ALONE static void heavy(Part &p)
{
	for (p.due += 0.006; p.used < p.due;) {
		double start = cpu();
		std::ostringstream out;
		for (unsigned i = 0; i < 300; i++)
			out << i * 1.5 << ' ';
		sink = out.str().size();
		p.used += cpu() - start;
	}
}

ALONE static void light(Part &p)
{
	for (p.due += 0.003; p.used < p.due;) {
		double start = cpu();
		std::ostringstream out;
		for (unsigned i = 0; i < 300; i++)
			out << i * 1.5 << ' ';
		sink = out.str().size();
		p.used += cpu() - start;
	}
}

ALONE static void rest(Part &p)
{
	for (p.due += 0.001; p.used < p.due;) {
		double start = cpu();
		std::ostringstream out;
		for (unsigned i = 0; i < 300; i++)
			out << i * 1.5 << ' ';
		sink = out.str().size();
		p.used += cpu() - start;
	}
}

ALONE static void work(Part *p)
{
	heavy(p[0]);
	light(p[1]);
	rest(p[2]);
}

ALONE static void step(Part *p)
{
	work(p);
	sink = sink + 1;
}

ALONE static void run(Part *p)
{
	step(p);
	std::cout << "ready" << std::endl;
	for (;;)
		step(p);
}

} // namespace load

int main()
{
	load::Part p[3];
	load::run(p);
}
