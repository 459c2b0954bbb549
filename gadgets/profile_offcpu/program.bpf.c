// SPDX-License-Identifier: GPL-2.0
/*
 * profile_offcpu: where threads wait.
 *
 * At each switch from one thread to another, ig_profile_offcpu remembers when
 * and why a thread leaves the CPU. When it is back and the wait passes the
 * filters, the time is added to the sum of its stacks. User space reads and
 * clears the sums every --map-fetch-interval, so each row is what was new since
 * the last one.
 *
 * A user stack can only be walked by its own thread, and a switch runs on the
 * stack of the one that leaves. There are two ways:
 *
 *  - Linux 6.15 and later have the tracepoint sched_exit_tp, which the thread
 *    that is back passes next: ig_offcpu_back walks both stacks there.
 *  - Without it, the stacks are walked at the switch and wait in a record of the
 *    thread. They enter the maps of stacks when the thread is back: there they
 *    would be dropped during a long wait.
 *
 * back_in_thread says which one it is. Where the kernel has the tracepoint,
 * otel-profiles attaches ig_offcpu_back and says so: see gadget.yaml.
 */
#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <gadget/types.h>
#include <gadget/macros.h>

/* As in gadget.yaml. */
#define USER_STACKS 32768

#include "../include/process.h"
#include "../include/rows.h"
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
	__u32 zero = 0, tid = task->pid;

	/* Thread 0 is what a CPU runs when it has nothing to do. */
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
	absence.since = bpf_ktime_get_ns();
	if (left) {
		left->absence = absence;
		return;
	}
	there = bpf_map_lookup_elem(&absences, &tid);
	if (there) {
		*there = absence;
	} else if (bpf_map_update_elem(&absences, &tid, &absence, BPF_ANY)) {
		scratch = bpf_map_lookup_elem(&scratch_rows, &zero);
		if (scratch)
			scratch->unseen.switches++;
	}
}

/*
 * Adds the wait of a thread that is back. ctx is that of a program which runs
 * in the thread, and NULL where it is about to run.
 */
static __always_inline void come_back(void *ctx, struct task_struct *task)
{
	struct stacks_of_next of_next = {};
	struct left_stacks *left = NULL;
	struct scratch_row *scratch;
	struct absence *absence = NULL;
	__u32 zero = 0, tid = task->pid;
	__u64 time;

	if (!back_in_thread)
		left = bpf_map_lookup_elem(&left_stacks, &tid);
	if (left)
		absence = &left->absence;
	else if (back_in_thread || overflowed)
		absence = bpf_map_lookup_elem(&absences, &tid);
	if (!absence || !absence->since)
		return;
	time = bpf_ktime_get_ns() - absence->since;
	absence->since = 0;
	if (time < min_duration_us * 1000 ||
	    (max_duration_us && time > max_duration_us * 1000))
		return;

	scratch = bpf_map_lookup_elem(&scratch_rows, &zero);
	if (!scratch)
		return;
	fill_process_from(task, &scratch->key.proc);
	if (ctx) {
		if (unwanted(&scratch->key.proc))
			return;
		stacks_of_current(ctx, scratch);
	} else {
		of_next = stacks_of_next(task, left, scratch);
	}
	scratch->key.reason_raw = absence->reason;
	scratch->value.off_cpu_raw = 0;
	scratch->value.switches = 0;
	if (!add(scratch, time, 1)) {
		scratch->homeless.time += time;
		scratch->homeless.switches++;
		return;
	}
	if (ctx)
		keep_stacks();
	else
		keep_stacks_of_next(&of_next);
	if (scratch->homeless.switches)
		add_homeless(scratch, &scratch->homeless, true);
	if (scratch->unseen.switches)
		add_homeless(scratch, &scratch->unseen, false);
}

/* Runs on behalf of prev, on its stack, with interrupts off. */
SEC("tp_btf/sched_switch")
int BPF_PROG(ig_profile_offcpu, bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	__u32 state;

	/* What another CPU has made of the state since is not why it leaves. */
	if (LINUX_KERNEL_VERSION >= HAS_PREV_STATE)
		state = ctx[3];
	else
		state = state_of(prev);
	leave(ctx, preempt, state, prev);
	if (!back_in_thread)
		come_back(NULL, next);
	return 0;
}

/*
 * Runs in a thread at the end of the scheduler, with preemption off. Not a
 * tp_btf program: no program of an image can be loaded if one's target is
 * missing.
 */
SEC("raw_tp/sched_exit_tp")
int ig_offcpu_back(struct bpf_raw_tracepoint_args *ctx)
{
	bool is_switch = ctx->args[0];

	if (back_in_thread && is_switch)
		come_back(ctx, bpf_get_current_task_btf());
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
