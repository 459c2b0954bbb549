/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Events are sampled by their amount, in bytes or nanoseconds. A sampled event and its stack are
 * sent to the operator captures, through the ring buffer "unwound". That operator classifies the
 * event by the functions on the stack, and adds it to the rows. Stacks come from the unwinder
 * (unwind.h), or else from frame pointers.
 *
 * A gadget declares its captures: the head, and a key and a value of its map rows. Both must have
 * no gaps and a size in multiples of 8 bytes:
 *
 *	struct my_capture {
 *		struct profiles_capture head;
 *		struct my_key key;
 *		struct my_value value;
 *	};
 *	CAPTURE_ROWS(my_source, rows, struct my_key, struct my_value)
 *
 * Its gadget.yaml enables the operator. The key has the members user_stack_key and
 * unwound_id. In a program:
 *
 *	weight = draw(amount, step);		the amount that it represents; 0: not sampled
 *	stack_id = unwind_capture(ctx, chain, flags, weight);
 *	capture = bpf_ringbuf_reserve(&unwound, sizeof(*capture), 0);
 *	begin_capture(&capture->head, stack_id);	then fill key and value
 *	put_capture_stack(ctx, flags, capture);
 *	submit_unwound(capture);
 */
#ifndef CAPTURE_H
#define CAPTURE_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <gadget/macros.h>

#include "drawn_events.h"
#include "per_cpu.h"
#include "stack_maps.h"
#include "unwind.h"

struct profiles_capture {
	__u64 time; /* bpf_ktime_get_boot_ns */
	__u64 id; /* never 0, and unique */
	__u64 stack_id; /* stack ID in the unwinder, or UNWIND_FELL_BACK; 0: the unwinder was not called */
	__u32 stretch; /* capture_settings.stretch at its time */
	__u32 __padding;
};

/* Defines a data source's map of rows. It stays empty: the operator captures adds the rows when it is read. */
#define CAPTURE_ROWS(source, map, what_key, what_value) \
	struct {                                        \
		__uint(type, BPF_MAP_TYPE_HASH);        \
		__uint(max_entries, 1);                 \
		__type(key, what_key);                  \
		__type(value, what_value);              \
	} map SEC(".maps");                             \
	GADGET_MAPITER(source, map);

/* The operator's settings for the programs. */
struct capture_settings {
	__u64 step; /* see draw; 0: use the gadget's parameter */
	__u32 stretch; /* a number that captures carry */
	__u32 closed; /* not 0: nothing is sampled */
};

/* The settings for all processes, and those for permanent sampling while others have stretches. */
#define SETTINGS_OF_ALL 0
#define SETTINGS_ALWAYS 1

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct capture_settings);
} capture_settings SEC(".maps");

/* Counts of the programs for the operator, per CPU. */
struct capture_counts {
	__u64 events; /* calls of draw */
	__u64 lost; /* captures without room, and their total weight */
	__u64 lost_weight;
	__u64 lost_events;
	__u64 full; /* for the gadget's own use: entries without room elsewhere */
};

PER_CPU(struct capture_counts, capture_counts)

static __always_inline void count_event(void)
{
	struct capture_counts *counts = capture_counts_here();

	if (counts)
		counts->events++;
}

static __always_inline void count_lost(__u64 weight, __u64 events)
{
	struct capture_counts *counts = capture_counts_here();

	if (!counts)
		return;
	counts->lost++;
	counts->lost_weight += weight;
	counts->lost_events += events;
}

static __always_inline void count_full(void)
{
	struct capture_counts *counts = capture_counts_here();

	if (counts)
		counts->full++;
}

/*
 * Samples events by their amount, in bytes or nanoseconds. An event of step or more is always
 * sampled. A smaller one is sampled with the probability amount/step, and represents step. So the
 * sum of the results is right on average, with at most one capture per step. The step is the
 * operator's, or else the gadget's. Returns 0 for an event that is not sampled.
 */
static __always_inline __u64 draw_by(__u32 settings, __u64 amount, __u64 step)
{
	struct capture_settings *control =
		bpf_map_lookup_elem(&capture_settings, &settings);

	if (!control || control->closed || unwind_is_over())
		return 0;
	if (control->step)
		step = control->step;
	if (step > 0xffffffff)
		step = 0xffffffff;
	if (amount >= step)
		return amount;
	if ((bpf_get_prandom_u32() * step) >> 32 < amount)
		return step;
	return 0;
}

static __always_inline __u64 draw(__u64 amount, __u64 step)
{
	return draw_by(SETTINGS_OF_ALL, amount, step);
}

static __always_inline void begin_capture_by(__u32 settings,
					     struct profiles_capture *head,
					     __u64 stack_id)
{
	struct capture_settings *control =
		bpf_map_lookup_elem(&capture_settings, &settings);
	__u64 now = bpf_ktime_get_boot_ns();

	head->time = now;
	/* Two CPUs can have the same time, but one CPU never has it twice. */
	head->id = now << 12 | (bpf_get_smp_processor_id() & 0xfff);
	head->stack_id = stack_id;
	head->stretch = control ? control->stretch : 0;
	head->__padding = 0;
}

static __always_inline void begin_capture(struct profiles_capture *head,
					  __u64 stack_id)
{
	begin_capture_by(SETTINGS_OF_ALL, head, stack_id);
}

/* From include/linux/sched.h: threads that have never been in user mode. */
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000
#define PF_KTHREAD 0x00200000

static __always_inline bool has_user_stack(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return collect_ustack && task->mm &&
	       !(task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER));
}

/* Per CPU: how many stacks the unwinder has taken in this second, and whether one is being taken by
 * frame pointers. */
struct capture_cpu {
	__u64 second;
	__u32 taken;
	__u32 busy;
};

PER_CPU(struct capture_cpu, capture_cpus)

static __always_inline bool within_budget(void)
{
	__u64 second = bpf_ktime_get_ns() / 1000000000;
	struct capture_cpu *cpu = capture_cpus_here();

	if (!cpu)
		return false;
	if (cpu->second != second) {
		cpu->second = second;
		cpu->taken = 0;
	}
	return cpu->taken++ < unwind_budget;
}

/*
 * Lets the unwinder take the current thread's stack for an event with this weight. Returns the
 * value for head.stack_id.
 */
static __always_inline __u64 unwind_capture(void *ctx,
					    const enum unwind_chain chain,
					    __u64 flags, __u64 weight)
{
	enum unwind_result result = UNWIND_OVER_BUDGET;
	__u64 id = 0;

	if (!unwind_on || !has_user_stack())
		return 0;
	if (within_budget())
		result = unwind_with(ctx, chain, flags, &id);
	count_unwind(result, weight);
	return result == UNWIND_DONE ? id : UNWIND_FELL_BACK;
}

/*
 * Returns the caller of the function that the thread has just entered. Frame pointers miss this
 * caller, because the function has not set its own frame pointer yet. Newer kernels include it.
 */
static __always_inline __u64 caller_at_entry(const struct pt_regs *regs)
{
	__u64 caller = 0;

#if defined(__TARGET_ARCH_x86)
	bpf_probe_read_user(&caller, sizeof(caller), (void *)PT_REGS_SP(regs));
#else
	caller = PT_REGS_RET(regs);
#endif
	return caller;
}

/* Takes the user stack by frame pointers, and returns its ID. */
static __always_inline __u32 frame_pointer_stack(void *ctx, __u64 flags,
						 __u32 space)
{
	struct row_stacks *stacks = row_stacks_here();
	struct found_stack found;
	__u64 caller = 0;
	long taken;

	if (!stacks)
		return -ENOENT;
	taken = take_user_frames(ctx, &stacks->user);
	if (flags & UNWIND_AT_ENTRY)
		caller = caller_at_entry(ctx);
	if (caller && taken > 0 && stacks->user[1] != caller) {
		taken = bpf_get_stack(ctx, &stacks->user[1],
				      sizeof(stacks->user) - 8,
				      BPF_F_USER_STACK);
		stacks->user[0] = stacks->user[1];
		stacks->user[1] = caller;
	}
	found = find_taken(&ig_ustack, &stacks->user, taken, space);
	keep_frames(&ig_ustack, &found, &stacks->user);
	return found.id;
}

/*
 * Fills in the user stack of a capture: the process, and, unless the unwinder has the stack, the ID
 * by frame pointers. If another program preempts this one here, the other one gets no memory.
 */
static __always_inline void
put_user_stack_of_capture(void *ctx, __u64 flags, __u64 stack_id,
			  struct gadget_user_stack *raw,
			  struct profiles_user_stack *by_id,
			  profiles_stack_key *key, profiles_stack *unwound_id)
{
	struct gadget_user_stack *ustack = user_stack_form(raw, by_id);
	bool user = fill_process_of(bpf_get_current_task_btf(), ustack);
	__u32 id = no_stack_id(&ig_ustack);
	struct capture_cpu *cpu = capture_cpus_here();

	*unwound_id = stack_id;
	if (user && cpu && stack_id <= UNWIND_FELL_BACK && has_user_stack()) {
		__sync_fetch_and_add(&cpu->busy, 1);
		if (*(volatile __u32 *)&cpu->busy == 1)
			id = frame_pointer_stack(ctx, flags,
						 ustack->base_addr_hash);
		__sync_fetch_and_add(&cpu->busy, -1);
	}
	ustack->stack_id = id;
	*key = id;
}

#define put_capture_stack(ctx, flags, capture)                             \
	put_user_stack_of_capture(ctx, flags, (capture)->head.stack_id,    \
				  &(capture)->value.user_stack_raw,        \
				  &(capture)->value.user_stack_id,         \
				  &(capture)->key.user_stack_key,          \
				  &(capture)->key.unwound_id)

#endif /* CAPTURE_H */
