/* SPDX-License-Identifier: GPL-2.0 */
/* Data of threads that are off the CPU. */
#ifndef PROFILE_OFFCPU_ABSENCE_H
#define PROFILE_OFFCPU_ABSENCE_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/macros.h>

#include "../include/stack_maps.h"
#include "call.h"
#include "reason.h"

/*
 * --sched-exit: "true" if a program runs in the thread that is back. The operator replaces "auto".
 */
const volatile char sched_exit[8] = "auto";
GADGET_PARAM(sched_exit);

#define back_in_thread is_true(sched_exit)

/*
 * The time and reason of leaving the CPU, by thread ID. If stacks are walked at that time, this map
 * only has threads without room in left_stacks. All memory is allocated at the start, because a program cannot
 * allocate under the locks of a switch. An entry stays until its thread ends.
 */
const volatile int absences_max_entries = 65536;

struct absence {
	__u64 since; /* 0 for a thread that is back */
	enum off_cpu_reason reason;
	enum off_cpu_call call; /* only if no program runs in the thread that is back */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* absences_max_entries */
	__type(key, __u32);
	__type(value, struct absence);
} absences SEC(".maps");

/* --thread-stacks, see gadget.yaml. Not used with back_in_thread. */
const volatile int left_stacks_max_entries = 16384;
GADGET_PARAM(left_stacks_max_entries);

/*
 * The stacks with which a thread has left the CPU. A waiting thread's kernel stack could be walked
 * later, but bpf_get_task_stack omits all scheduler functions. That includes functions that show
 * the reason of a wait, such as mutex_lock, do_nanosleep and io_schedule.
 */
struct left_stacks {
	struct absence absence;
	stack_frames user;
	deep_frames kernel;
	long user_taken; /* see find_taken */
	long kernel_taken;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* left_stacks_max_entries */
	__type(key, __u32);
	__type(value, struct left_stacks);
} left_stacks SEC(".maps");

/* Whether left_stacks was ever full. Then further threads are in absences. */
static volatile bool overflowed;

/* The initial content of an entry of left_stacks. */
static const struct left_stacks no_left_stacks;

/* Keeps the stacks of the current thread until it is back, if there is room. */
static __always_inline struct left_stacks *keep_left_stacks(void *ctx, __u32 tid,
							    bool user)
{
	struct left_stacks *left = bpf_map_lookup_elem(&left_stacks, &tid);

	if (!left) {
		if (!bpf_map_update_elem(&left_stacks, &tid, &no_left_stacks,
					 BPF_NOEXIST))
			left = bpf_map_lookup_elem(&left_stacks, &tid);
		if (!left) {
			overflowed = true;
			return NULL;
		}
	}
	if (user)
		left->user_taken = take_user_frames(ctx, &left->user);
	left->kernel_taken = take_kernel_frames(ctx, &left->kernel);
	return left;
}

static __always_inline void forget(__u32 tid)
{
	if (!back_in_thread)
		bpf_map_delete_elem(&left_stacks, &tid);
	if (back_in_thread || overflowed)
		bpf_map_delete_elem(&absences, &tid);
}

#endif /* PROFILE_OFFCPU_ABSENCE_H */
