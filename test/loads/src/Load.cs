// 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its share.
// Nothing is inlined, and there are no last calls, because the runtime's compiler makes jumps of these.
using System;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

static class Load
{
	struct Time { public long seconds, nanoseconds; }

	[DllImport("libc.so.6")]
	static extern int clock_gettime(int clock, out Time time);

	const int thread = 3; // CLOCK_THREAD_CPUTIME_ID

	static readonly double[] used = new double[3], due = new double[3];
	static uint result;
	static long works, steps;

	[MethodImpl(MethodImplOptions.NoInlining)]
	static double cpu()
	{
		Time t;
		clock_gettime(thread, out t);
		return t.seconds + t.nanoseconds / 1e9;
	}

	[MethodImpl(MethodImplOptions.NoInlining)]
	static void heavy()
	{
		due[0] += 0.006;
		while (used[0] < due[0]) {
			double start = cpu();
			uint x = 1;
			for (uint i = 0; i < 200000; i++) x = (x * 31 + i) & 0xffffff;
			result = x;
			used[0] += cpu() - start;
		}
	}

	[MethodImpl(MethodImplOptions.NoInlining)]
	static void light()
	{
		due[1] += 0.003;
		while (used[1] < due[1]) {
			double start = cpu();
			uint x = 1;
			for (uint i = 0; i < 200000; i++) x = (x * 31 + i) & 0xffffff;
			result = x;
			used[1] += cpu() - start;
		}
	}

	[MethodImpl(MethodImplOptions.NoInlining)]
	static void rest()
	{
		due[2] += 0.001;
		while (used[2] < due[2]) {
			double start = cpu();
			uint x = 1;
			for (uint i = 0; i < 200000; i++) x = (x * 31 + i) & 0xffffff;
			result = x;
			used[2] += cpu() - start;
		}
	}

	[MethodImpl(MethodImplOptions.NoInlining)]
	static void work()
	{
		heavy();
		light();
		rest();
		works++;
	}

	[MethodImpl(MethodImplOptions.NoInlining)]
	static void step()
	{
		work();
		steps++;
	}

	[MethodImpl(MethodImplOptions.NoInlining)]
	static void run()
	{
		step();
		Console.Out.Write("ready\n");
		Console.Out.Flush();
		for (;;) step();
	}

	static void Main()
	{
		run();
		Console.Out.Write(result);
	}
}
