/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Drawing events in proportion to what each is worth, so that few stacks tell of
 * many events. An event of a value is drawn with the probability value/step, and then
 * stands for step; one that is worth more than that is always drawn, and stands for
 * itself. Sums of what is drawn are right on the average, whatever the events are.
 *
 * The step of a CPU follows its events: it doubles when a part of the second's
 * budget is used before its time, and halves for each second in which less than half
 * was used. It depends on events of before alone, which keeps the sums right. A CPU that
 * has drawn twice its budget in a second draws no more.
 */
#ifndef DRAW_H
#define DRAW_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

struct draw_state {
	__u64 second; /* which one this is */
	__u64 step; /* 0 before the first event */
	__u32 drawn; /* in this second */
	__u32 raised; /* how often the step was doubled in this second */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct draw_state);
} draw_states SEC(".maps");

struct drawn {
	__u64 value; /* what the event stands for; 0: it was not drawn */
	__u64 events; /* how many events it stands for */
	bool over_budget; /* it has to do without a stack */
};

/* Into how many parts the second's budget is divided, of which each may be used in as much of the second. */
#define DRAW_PARTS 8
#define DRAW_SECOND 1000000000ull

/* Draws an event of a value at the time now, in nanoseconds. least is the smallest step. */
static __always_inline struct drawn draw(__u64 value, __u64 now, __u64 least,
					 __u32 budget)
{
	struct drawn drawn = {};
	struct draw_state *state;
	__u32 zero = 0, due;
	__u64 step, second = now / DRAW_SECOND;

	state = bpf_map_lookup_elem(&draw_states, &zero);
	if (!state || !value)
		return drawn;
	if (second != state->second) {
		if (state->drawn < budget / 2)
			state->step >>= second - state->second < 32 ?
						second - state->second :
						32;
		state->second = second;
		state->drawn = 0;
		state->raised = 0;
	}
	if (state->step < least)
		state->step = least;
	step = state->step;
	if (!step)
		return drawn;
	if (value >= step) {
		drawn.value = value;
		drawn.events = 1;
	} else {
		/* What is left of the division is rounded up as often as it is large. */
		if ((__u64)bpf_get_prandom_u32() * step >= value << 32)
			return drawn;
		drawn.value = step;
		drawn.events = step / value;
		if ((__u64)bpf_get_prandom_u32() * value <
		    (step % value) << 32)
			drawn.events++;
	}
	state->drawn++;
	if (state->drawn > 2 * budget)
		drawn.over_budget = true;
	/* The part of the budget that is due at this time of the second, and one more for what comes in a burst. */
	due = budget * ((now % DRAW_SECOND) * DRAW_PARTS / DRAW_SECOND + 2) /
	      DRAW_PARTS;
	if (state->drawn > due * (state->raised + 4) / 4 && state->raised < 32 &&
	    state->step < 1ull << 31) {
		state->step *= 2;
		state->raised++;
	}
	return drawn;
}

#endif /* DRAW_H */
