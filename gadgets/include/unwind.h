/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Collects whole stacks of the current thread, in every language of the unwinder. The operator unwind
 * gets the frames. A program calls unwind() for an ID, and sends its counts with that ID in a record of
 * the ring buffer unwound:
 *
 *	struct { __u64 id; KEY key; VALUE value; }
 *
 * with the key and the value of the gadget's map rows. The operator adds the rows with their frames
 * to what Inspektor Gadget reads from that map. The unwinder may not run, or may not know the
 * process yet. If unwind() does not return UNWIND_DONE, the program takes the stack by frame
 * pointers and adds to rows itself.
 *
 * The key has a member unwound_id of the type profiles_stack.
 *
 * Before including this file, a gadget defines the types of its calling programs:
 * UNWIND_FROM_KPROBE, UNWIND_FROM_RAW_TP, UNWIND_FROM_PERF, UNWIND_FROM_TRACEPOINT.
 */
#ifndef UNWIND_H
#define UNWIND_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

#include "unwind_slot.h"

/* The operator's variables. Inspektor Gadget lets operators set a variable if there is a second one
 * with this prefix. */
#define UNWIND_VARIABLE(name)             \
	const volatile __u32 name = 0;    \
	const volatile __u32 gadget_var_##name = 0;

/* Whether stacks are unwound; 0 with --unwind=frame-pointers. */
UNWIND_VARIABLE(unwind_on)
/* The number of this run, a part of its IDs. */
UNWIND_VARIABLE(unwind_run)
/* The maximum number of stacks of a CPU per second. */
UNWIND_VARIABLE(unwind_budget)
/* The minimum value that one sampled event represents, in units of the counted value. */
UNWIND_VARIABLE(unwind_step)

/* The ID of a row's frames in the operator. */
typedef __u64 profiles_stack;

/* Replaces an ID if the unwinder could not collect the stack, so the stack is by frame pointers. */
#define UNWIND_FELL_BACK 1

/*
 * The slots. ig replaces this map. Inspektor Gadget only replaces maps of this name.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UNWIND_CHAINS);
	__type(key, __u32);
	__type(value, struct unwind_slot);
} otel_generic_params SEC(".maps");

/* The entry of a chain. ig fills it while the unwinder runs. */
#define UNWIND_ENTRY(name)                             \
	struct {                                       \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY); \
		__uint(max_entries, 1);                \
		__type(key, __u32);                    \
		__type(value, __u32);                  \
	} name SEC(".maps");

/*
 * The rows whose frames come from the unwinder. On a machine whose CPUs are all busy, ig sometimes
 * does not run for several seconds. The kernel keeps at least 20,000 events for it.
 */
#define UNWOUND_SIZE (1 << 22)
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, UNWOUND_SIZE);
} unwound SEC(".maps");

/*
 * Hands a record of the ring buffer to user space, which reads several times a second. It is woken
 * early only if the buffer gets full. A reader that wakes at each record would cost the thread more
 * than everything else. It would also run right after each sample, so other CPUs' timers would
 * sample it in place of the program.
 */
static __always_inline void submit_unwound(void *record)
{
	bool many = bpf_ringbuf_query(&unwound, BPF_RB_AVAIL_DATA) >
		    UNWOUND_SIZE / 16;

	bpf_ringbuf_submit(record,
			   many ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

/* Not 0 after the run has stopped using the unwinder. From then until the programs are detached,
 * events do not count. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} unwind_over SEC(".maps");

static __always_inline bool unwind_is_over(void)
{
	__u32 zero = 0;
	__u32 *over = bpf_map_lookup_elem(&unwind_over, &zero);

	return over && *(volatile __u32 *)over;
}

/* The number and values of sampled events, by their enum unwind_result. */
struct unwind_count {
	__u64 events;
	__u64 value;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UNWIND_RESULTS);
	__type(key, __u32);
	__type(value, struct unwind_count);
} unwind_counts SEC(".maps");

static __always_inline void count_unwind(enum unwind_result result, __u64 value)
{
	__u32 key = result;
	struct unwind_count *count = bpf_map_lookup_elem(&unwind_counts, &key);

	if (!count)
		return;
	__sync_fetch_and_add(&count->events, 1);
	__sync_fetch_and_add(&count->value, value);
}

/*
 * The tail calls. Each is in a function that is not inlined, so the chain's end returns to the
 * caller. A program must not refer to the array of another program type.
 */
#define UNWIND_CALL(name, entry)                             \
	static __noinline int name(void *ctx)                \
	{                                                    \
		bpf_tail_call(ctx, &entry, 0);               \
		return 0;                                    \
	}

#ifdef UNWIND_FROM_KPROBE
UNWIND_ENTRY(unwind_kprobe)
UNWIND_CALL(call_kprobe_chain, unwind_kprobe)
#else
#define call_kprobe_chain(ctx)
#endif
#ifdef UNWIND_FROM_RAW_TP
UNWIND_ENTRY(unwind_raw_tp)
UNWIND_CALL(call_raw_tp_chain, unwind_raw_tp)
#else
#define call_raw_tp_chain(ctx)
#endif
#ifdef UNWIND_FROM_PERF
UNWIND_ENTRY(unwind_perf)
UNWIND_CALL(call_perf_chain, unwind_perf)
#else
#define call_perf_chain(ctx)
#endif
#ifdef UNWIND_FROM_TRACEPOINT
UNWIND_ENTRY(unwind_tracepoint)
UNWIND_CALL(call_tracepoint_chain, unwind_tracepoint)
#else
#define call_tracepoint_chain(ctx)
#endif

/*
 * Unwinds the current thread's stack, and returns its ID in id. chain is the constant of the
 * program's type. flags are UNWIND_AT_ENTRY and similar ones. If another event of the CPU preempts
 * the program here, that event gets UNWIND_BUSY.
 */
static __always_inline enum unwind_result
unwind_with(void *ctx, const enum unwind_chain chain, __u64 flags, __u64 *id)
{
	enum unwind_result result = UNWIND_BUSY;
	struct unwind_slot *slot;
	__u32 key = chain;

	slot = bpf_map_lookup_elem(&otel_generic_params, &key);
	if (!slot)
		return UNWIND_NO_CHAIN;
	__sync_fetch_and_add(&slot->busy, 1);
	if (*(volatile __u64 *)&slot->busy == 1) {
		slot->seq++;
		*id = (__u64)unwind_run << UNWIND_RUN_SHIFT |
		      (slot->seq & UNWIND_SEQ_MASK) << UNWIND_SEQ_SHIFT |
		      (__u64)bpf_get_smp_processor_id() << UNWIND_CPU_SHIFT |
		      chain;
		slot->id = *id;
		slot->flags = flags;
		*(volatile __u64 *)&slot->result = UNWIND_NO_CHAIN;
		if (chain == UNWIND_KPROBE)
			call_kprobe_chain(ctx);
		else if (chain == UNWIND_RAW_TP)
			call_raw_tp_chain(ctx);
		else if (chain == UNWIND_TRACEPOINT)
			call_tracepoint_chain(ctx);
		else
			call_perf_chain(ctx);
		result = *(volatile __u64 *)&slot->result;
	}
	__sync_fetch_and_add(&slot->busy, -1);
	return result;
}

/* unwind without flags. */
static __always_inline enum unwind_result
unwind(void *ctx, const enum unwind_chain chain, __u64 *id)
{
	return unwind_with(ctx, chain, 0, id);
}

#endif /* UNWIND_H */
