/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Samples events in proportion to their values, so that few stacks represent many events. The values
 * of a CPU's events are laid end to end and cut into parts of one step. Each part has one random
 * point. The event at the point is sampled, and represents the step. Its probability is value/step.
 * An event with a larger value than a step is always sampled, and represents itself. Sums of sampled
 * events are right on average. For many similar events in a row, they are nearly exact.
 *
 * The step of a CPU depends on its events. It doubles when a part of the second's budget is used too
 * early. It halves for each second in which less than half of the budget was used. The point of the
 * current part does not affect the step, so the sums stay right. A CPU that has sampled twice its
 * budget in a second samples no other stacks in this second.
 */
#ifndef DRAW_H
#define DRAW_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

#include "drawn_events.h"
#include "per_cpu.h"

struct draw_state {
	__u64 second; /* the number of this second */
	__u64 step; /* of the next part; 0 before the first event */
	__u64 size; /* of this part; 0 before the first event */
	__u64 used; /* the length of this part that events have used */
	__u64 point; /* the position of the random point in this part */
	__u32 hit; /* 1 if drawn counts the event at this point */
	__u32 drawn; /* the number of sampled events in this second */
	__u32 raised; /* how often the step was doubled in this second */
};

PER_CPU(struct draw_state, draw_states)

/* The second and its budget are divided into this number of parts. */
#define DRAW_PARTS 8
#define DRAW_SECOND 1000000000ull

/* Begins a part of a size below 1 << 32. */
static __always_inline void begin_part(struct draw_state *state, __u64 size)
{
	state->size = size;
	state->used = 0;
	state->point = (__u64)bpf_get_prandom_u32() * size >> 32;
	state->hit = 0;
}

/* Doubles the step if too many events were sampled for this time of the second. */
static __always_inline bool raise_step(struct draw_state *state, __u64 now,
				       __u32 budget)
{
	/* This is the part of the budget for this time, and one more for a burst. */
	__u32 due = budget *
		    ((now % DRAW_SECOND) * DRAW_PARTS / DRAW_SECOND + 2) /
		    DRAW_PARTS;

	if (state->drawn - state->hit <= due * (state->raised + 4) / 4 ||
	    state->raised >= 32 || state->step >= 1ull << 31)
		return false;
	state->step *= 2;
	state->raised++;
	return true;
}

/* Samples an event with this value at the time now, in nanoseconds. least is the smallest step. */
static __always_inline struct drawn draw(__u64 value, __u64 now, __u64 least,
					 __u32 budget)
{
	struct drawn drawn = {};
	struct draw_state *state = draw_states_here();
	__u64 size, used, over, second = now / DRAW_SECOND;

	if (!state || !value)
		return drawn;
	if (second != state->second) {
		if (state->drawn - state->hit < budget / 2) {
			state->step >>= second - state->second < 32 ?
						second - state->second :
						32;
			state->size = 0;
		}
		state->second = second;
		state->drawn = 0;
		state->hit = 0;
		state->raised = 0;
	}
	if (state->step < least)
		state->step = least;
	if (!state->step)
		return drawn;
	if (!state->size)
		begin_part(state, state->step);
	/* These are read once, because they can change while a program is preempted. */
	size = state->size;
	used = state->used;
	if (value >= size || used >= size) {
		drawn.value = value;
		drawn.events = 1;
		state->drawn++;
		if (raise_step(state, now, budget))
			state->size = 0;
	} else {
		if (state->point >= used && state->point < used + value) {
			drawn.value = size;
			state->drawn++;
			state->hit = 1;
		}
		if (used + value < size) {
			state->used = used + value;
		} else {
			state->hit = 0;
			raise_step(state, now, budget);
			over = used + value - size;
			size = state->step > over ? state->step : over + 1;
			begin_part(state, size);
			state->used = over;
			if (state->point < over) {
				drawn.value += size;
				state->drawn++;
				state->hit = 1;
			}
		}
		if (!drawn.value)
			return drawn;
		drawn.events = drawn_events(value, drawn.value);
	}
	if (state->drawn > 2 * budget)
		drawn.over_budget = true;
	return drawn;
}

#endif /* DRAW_H */
