// SPDX-License-Identifier: GPL-2.0
/*
 * profile_offcpu shows where threads wait.
 *
 * At each switch from one thread to another, ig_profile_offcpu remembers when
 * and why a thread leaves the CPU. When it is back and the wait passes the
 * filters, the time is added to the sum of its stacks. User space reads and
 * clears the sums every --map-fetch-interval, so each row has the waits since the last read.
 *
 * Only a thread itself can walk its user stack, and a switch runs on the stack of the leaving
 * thread. There are two ways:
 *
 *  - A program runs in the thread that is back, and walks both stacks there. On
 *    Linux 6.15 and later, this is ig_offcpu_back on the tracepoint sched_exit_tp.
 *    Otherwise, it is ig_offcpu_back_kprobe on the function finish_task_switch.
 *  - Without either, the stacks are walked at the switch, and kept in a record of
 *    the thread. When the thread is back, they are put into the stack maps. These
 *    maps would drop the stacks during a long wait.
 *
 * back_in_thread selects the way. otel-profiles attaches the programs that the kernel allows, and
 * sets it: see gadget.yaml.
 */
#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <gadget/types.h>
#include <gadget/macros.h>

/* As in gadget.yaml. */
#define ROWS 20480
#define USER_STACKS 32768
#define UNWIND_FROM_RAW_TP
#define UNWIND_FROM_KPROBE

#include "../include/draw.h"
#include "../include/process.h"
#include "../include/stack_maps.h"
#include "absence.h"
#include "back.h"
#include "reason.h"
#include "row.h"

/* From include/linux/sched.h. */
#define TASK_DEAD 0x0080
#define PF_KTHREAD 0x00200000

const volatile bool include_kernel_threads = false;
GADGET_PARAM(include_kernel_threads);

const volatile __u64 min_duration_us = 0;
GADGET_PARAM(min_duration_us);

const volatile __u64 max_duration_us = 0;
GADGET_PARAM(max_duration_us);

/* As KERNEL_VERSION(5, 18, 0): sched_switch has the argument prev_state. */
#define HAS_PREV_STATE (5 << 16 | 18 << 8)
extern int LINUX_KERNEL_VERSION __kconfig;

/* Runs in the thread that leaves. */
static __always_inline void leave(void *ctx, bool preempt, __u32 state,
				  struct task_struct *task)
{
	struct left_stacks *left = NULL;
	struct scratch_row *scratch;
	struct absence *there, absence = {};
	struct profiles_process proc = {};
	__u32 tid = task->pid;

	/* Thread 0 is the idle thread. */
	if (!tid || (task->flags & PF_KTHREAD && !include_kernel_threads))
		return;
	if (!preempt && state & TASK_DEAD) {
		forget(tid);
		return;
	}

	if (!back_in_thread) {
		fill_process_from(task, &proc);
		if (unwanted(&proc))
			return;
		left = keep_left_stacks(ctx, tid, collect_ustack && task->mm);
	}
	absence.reason = reason_of(preempt, state);
	if (!back_in_thread)
		absence.call = call_of(task, absence.reason);
	absence.since = bpf_ktime_get_ns();
	if (left) {
		left->absence = absence;
		return;
	}
	there = bpf_map_lookup_elem(&absences, &tid);
	if (there) {
		*there = absence;
	} else if (bpf_map_update_elem(&absences, &tid, &absence, BPF_ANY)) {
		scratch = scratch_rows_here();
		if (scratch)
			scratch->unseen.events++;
	}
}

/*
 * Adds the wait of a returning thread. ctx is the context of a program in the thread, or NULL if
 * the thread is about to run. chain is the program's chain.
 */
static __always_inline void come_back(void *ctx, struct task_struct *task,
				      const enum unwind_chain chain)
{
	struct drawn drawn;
	struct stacks_of_next of_next = {};
	struct left_stacks *left = NULL;
	struct scratch_row *scratch;
	struct absence *absence = NULL;
	__u32 tid = task->pid;
	__u64 now, time;

	if (!back_in_thread)
		left = bpf_map_lookup_elem(&left_stacks, &tid);
	if (left)
		absence = &left->absence;
	else if (back_in_thread || overflowed)
		absence = bpf_map_lookup_elem(&absences, &tid);
	if (!absence || !absence->since)
		return;
	now = bpf_ktime_get_ns();
	time = now - absence->since;
	absence->since = 0;
	if (time < min_duration_us * 1000 ||
	    (max_duration_us && time > max_duration_us * 1000))
		return;

	scratch = scratch_rows_here();
	if (!scratch)
		return;
	fill_process_from(task, &scratch->key.proc);
	scratch->key.reason_raw = absence->reason;
	scratch->key.call_raw = absence->call;
	scratch->key.unwound_id = 0;
	drawn.value = time;
	drawn.events = 1;
	drawn.over_budget = false;
	if (ctx) {
		if (unwanted(&scratch->key.proc))
			return;
		scratch->key.call_raw = call_of(task, absence->reason);
		if (unwind_on) {
			drawn = draw(time, now, unwind_step, unwind_budget);
			if (!drawn.value ||
			    unwind_row(ctx, chain, scratch, &drawn))
				return;
		}
		if (drawn.over_budget)
			put_no_stacks(scratch);
		else
			put_stacks(ctx, scratch,
				   kernel_stack_id_from(ctx, __sched_text_start,
							__sched_text_end));
	} else {
		of_next = stacks_of_next(task, left, scratch);
	}
	if (!add_event(scratch, &drawn))
		return;
	if (ctx)
		keep_stacks();
	else
		keep_stacks_of_next(&of_next);
	add_homeless_waits(scratch);
}

/* Runs for prev, on its stack, with interrupts off. */
SEC("tp_btf/sched_switch")
int BPF_PROG(ig_profile_offcpu, bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	__u32 state;

	/* Another CPU can have changed the state since then, but not the reason for leaving. */
	if (LINUX_KERNEL_VERSION >= HAS_PREV_STATE)
		state = ctx[3];
	else
		state = state_of(prev);
	leave(ctx, preempt, state, prev);
	if (!back_in_thread)
		come_back(NULL, next, UNWIND_CHAINS);
	return 0;
}

/*
 * Runs in a thread at the end of the scheduler, with preemption off. It is not a tp_btf program,
 * because a missing target would prevent loading all programs of the image.
 */
SEC("raw_tp/sched_exit_tp")
int ig_offcpu_back(struct bpf_raw_tracepoint_args *ctx)
{
	bool is_switch = ctx->args[0];

	if (back_in_thread && is_switch)
		come_back(ctx, bpf_get_current_task_btf(), UNWIND_RAW_TP);
	return 0;
}

/*
 * A returning thread runs this function first. The lock of its CPU's queue is held and interrupts
 * are off, as in ig_profile_offcpu.
 */
SEC("kprobe/finish_task_switch")
int ig_offcpu_back_kprobe(struct pt_regs *ctx)
{
	if (back_in_thread)
		come_back(ctx, bpf_get_current_task_btf(), UNWIND_KPROBE);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
