/* SPDX-License-Identifier: GPL-2.0 */
/* Fills in the process of a user stack, because Inspektor Gadget needs it to name the frames. */
#ifndef STACK_PROCESS_H
#define STACK_PROCESS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#include "stack_ids.h"

/* --collect-ustack is on by default. Inspektor Gadget defines the name. */
const volatile bool collect_ustack = true;
GADGET_PARAM(collect_ustack);

/* The member of the modification time and its type differ between kernels. */
struct inode___since_6_11 {
	time64_t i_mtime_sec;
	u32 i_mtime_nsec;
} __attribute__((preserve_access_index));

struct inode___since_6_7 {
	struct timespec64 __i_mtime;
} __attribute__((preserve_access_index));

struct inode___before_6_7 {
	struct timespec64 i_mtime;
} __attribute__((preserve_access_index));

static __always_inline void fill_mtime(struct gadget_user_stack *ustack,
				       struct inode *inode)
{
	struct inode___since_6_11 *split = (void *)inode;
	struct inode___since_6_7 *renamed = (void *)inode;
	struct inode___before_6_7 *plain = (void *)inode;

	if (bpf_core_field_exists(split->i_mtime_sec)) {
		ustack->mtime_sec = split->i_mtime_sec;
		ustack->mtime_nsec = split->i_mtime_nsec;
	} else if (bpf_core_field_exists(renamed->__i_mtime)) {
		ustack->mtime_sec = renamed->__i_mtime.tv_sec;
		ustack->mtime_nsec = renamed->__i_mtime.tv_nsec;
	} else if (bpf_core_field_exists(plain->i_mtime)) {
		ustack->mtime_sec = plain->i_mtime.tv_sec;
		ustack->mtime_nsec = plain->i_mtime.tv_nsec;
	}
}

/*
 * Fills in the executable and the process of a thread's user stack. Inspektor Gadget needs them to
 * name frames. With --collect-ustack=false, and for threads without user memory, it returns false and
 * leaves everything zero. Inspektor Gadget reads that as "no user stack". The verifier must know
 * the type of task, as for an argument of a tp_btf program. Members are then read without a call.
 *
 * boot_timestamp differs each time, and the thread's ID differs within a process. So an aggregating
 * map keeps this struct in the value, and only its stack_id in the key.
 */
static __always_inline bool fill_process_of(struct task_struct *task,
					    struct gadget_user_stack *ustack)
{
	struct mm_struct *mm;
	struct inode *inode;
	struct pid *pid;
	struct upid *upid;
	dev_t dev;

	__builtin_memset(ustack, 0, sizeof(*ustack));
	if (!collect_ustack)
		return false;
	mm = task->mm;
	if (!mm)
		return false;

	/* The same addresses in two programs are different stacks. */
	ustack->base_addr_hash =
		mix(mix((__u64)BPF_CORE_READ(task, mm), mm->start_code),
		    mm->start_stack);
	ustack->boot_timestamp = bpf_ktime_get_boot_ns();

	inode = mm->exe_file->f_inode;
	dev = inode->i_sb->s_dev;
	ustack->major = dev >> 20;
	ustack->minor = dev & ((1u << 20) - 1);
	ustack->inode = inode->i_ino;
	fill_mtime(ustack, inode);

	pid = task->thread_pid;
	upid = (void *)&pid->numbers;
	ustack->tgid_level0 = task->tgid;
	ustack->pid_level0 = BPF_CORE_READ(upid, nr);
	ustack->pidns_level0 = BPF_CORE_READ(upid, ns, ns.inum);
	if (pid->level > 0) {
		upid++;
		ustack->pid_level1 = BPF_CORE_READ(upid, nr);
		ustack->pidns_level1 = BPF_CORE_READ(upid, ns, ns.inum);
	}
	return true;
}

#endif /* STACK_PROCESS_H */
