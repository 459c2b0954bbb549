/*
 * Draws events as gadgets do, without a kernel, repeatedly from random initial states. Several kinds of events
 * share a CPU. Events have several values, come in turn or in long rows, and at changing rates. For each kind,
 * it prints the average drawn value and number, and a single run's deviation, as fractions of the truth.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long __u64;
typedef unsigned int __u32;
#define SEC(name)
#define __uint(name, value) int (*name)[value]
#define __type(name, type) type *name
#ifndef __always_inline
#define __always_inline inline
#endif
enum { BPF_MAP_TYPE_PERCPU_ARRAY = 6 };

static __u64 seed;

static __u32 bpf_get_prandom_u32(void)
{
	/* splitmix64 */
	__u64 z = seed += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z >> 32;
}

static void *state;

static void *bpf_map_lookup_elem(void *map, const void *key)
{
	(void)map, (void)key;
	return state;
}

#include "draw.h"

#define KINDS 3
#define RUNS 200
#define BUDGET 100
#define SECONDS 10

struct kind {
	double worth, events, found, found_events, squares;
};

/* One run: value is an event's value by kind, row the number of events of a kind in a row, and rate the number of events per second. */
static void run(struct kind *kinds, const __u64 *value, int row, int rate, bool waves)
{
	static struct draw_state here;
	double sums[KINDS] = {};
	int n = 0;

	memset(&here, 0, sizeof(here));
	state = &here;
	for (int s = 0; s < SECONDS; s++) {
		int many = waves && s % 4 == 0 ? 20 * rate : rate;
		for (int i = 0; i < many; i++, n++) {
			int k = n / row % KINDS;
			struct drawn d = draw(value[k], s * DRAW_SECOND + i * (DRAW_SECOND / many), value[0] > 1 ? 1000 : 1, BUDGET);
			sums[k] += d.value;
			kinds[k].worth += value[k];
			kinds[k].events++;
			kinds[k].found_events += d.value ? d.events : 0;
		}
	}
	for (int k = 0; k < KINDS; k++) {
		kinds[k].found += sums[k];
		kinds[k].squares += sums[k] * sums[k];
	}
}

int main(void)
{
	static const struct {
		const char *name;
		__u64 value[KINDS];
		int row, rate;
		bool waves;
	} loads[] = {
		{ "waits", { 60000000, 30000000, 10000000 }, 1, 1000, false },
		{ "waits-in-waves", { 60000000, 30000000, 10000000 }, 1, 500, true },
		{ "long-and-short", { 2000000000, 5000, 700000 }, 1, 3000, true },
		{ "faults", { 1, 1, 1 }, 5000, 20000, false },
		{ "faults-in-waves", { 1, 1, 1 }, 10, 3000, true },
	};

	for (size_t l = 0; l < sizeof(loads) / sizeof(loads[0]); l++) {
		struct kind kinds[KINDS] = {};
		for (int r = 0; r < RUNS; r++) {
			seed = 1 + r * 1000003ull;
			run(kinds, loads[l].value, loads[l].row, loads[l].rate, loads[l].waves);
		}
		for (int k = 0; k < KINDS; k++) {
			double mean = kinds[k].found / RUNS, worth = kinds[k].worth / RUNS;
			double deviation = sqrt(fmax(0, kinds[k].squares / RUNS - mean * mean));
			printf("%s-%d %f %f %f\n", loads[l].name, k, mean / worth, kinds[k].found_events / kinds[k].events, deviation / worth);
		}
	}
}
