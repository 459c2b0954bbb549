/* SPDX-License-Identifier: GPL-2.0 */
/* Why a thread has left the CPU. */
#ifndef PROFILE_OFFCPU_REASON_H
#define PROFILE_OFFCPU_REASON_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* From include/linux/sched.h. */
#define TASK_INTERRUPTIBLE 0x0001
#define TASK_UNINTERRUPTIBLE 0x0002

/* Why the thread left the CPU. Users see these names. */
enum off_cpu_reason {
	/* It could have continued, but other threads got the CPU. */
	preempted,
	/* It waits for input, a timer or a lock, and a signal can wake it. */
	sleeping,
	/* It waits, often for a disk, and no signal can wake it. */
	uninterruptible,
	/* It is stopped, traced or frozen, or was just woken. */
	other,
};

/* The field was renamed in Linux 5.14. */
struct task_struct___before_5_14 {
	volatile long state;
} __attribute__((preserve_access_index));

static __always_inline __u32 state_of(struct task_struct *task)
{
	struct task_struct___before_5_14 *old = (void *)task;

	if (bpf_core_field_exists(old->state))
		return BPF_CORE_READ(old, state);
	return BPF_CORE_READ(task, __state);
}

static __always_inline enum off_cpu_reason reason_of(bool preempt, __u32 state)
{
	/* A thread preempted on its way to sleep has a state, too. */
	if (preempt || !state)
		return preempted;
	if (state & TASK_UNINTERRUPTIBLE)
		return uninterruptible;
	if (state & TASK_INTERRUPTIBLE)
		return sleeping;
	return other;
}

#endif /* PROFILE_OFFCPU_REASON_H */
