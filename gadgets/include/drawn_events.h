/* SPDX-License-Identifier: GPL-2.0 */
#ifndef DRAWN_EVENTS_H
#define DRAWN_EVENTS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

/* A sampled event. */
struct drawn {
	__u64 value; /* the value that the event represents; 0: not sampled */
	__u64 events; /* the number of events that it represents */
	bool over_budget; /* the event gets no stack */
};

/*
 * Returns how many events of amount a sampled event with this weight represents. The remainder is
 * rounded up with a probability in proportion to its size, so that sums are right on average. An
 * amount of more than 32 bits must have no remainder.
 */
static __always_inline __u64 drawn_events(__u64 amount, __u64 weight)
{
	if (!amount)
		amount = 1;
	return weight / amount +
	       ((__u64)bpf_get_prandom_u32() * amount >> 32 < weight % amount);
}

#endif /* DRAWN_EVENTS_H */
