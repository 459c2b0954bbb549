/* SPDX-License-Identifier: GPL-2.0 */
/* The stacks of a thread that is back. */
#ifndef PROFILE_OFFCPU_BACK_H
#define PROFILE_OFFCPU_BACK_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

#include "../include/kernel_symbol.h"
#include "../include/stack_maps.h"
#include "absence.h"
#include "row.h"

/*
 * The code of the scheduler. Without the frames of the tracing, a stack begins there.
 */
KERNEL_SYMBOL(__sched_text_start);
KERNEL_SYMBOL(__sched_text_end);

/* The stacks of a thread that is about to run. left has its stacks from when it left the CPU, if any. */
struct stacks_of_next {
	struct left_stacks *left;
	struct found_stack user;
	struct found_stack kernel;
	__u32 kernel_skip;
};

static __always_inline struct stacks_of_next
stacks_of_next(struct task_struct *task, struct left_stacks *left,
	       struct scratch_row *scratch)
{
	struct gadget_user_stack *ustack =
		user_stack_form(&scratch->value.user_stack_raw,
				&scratch->value.user_stack_id);
	struct stacks_of_next of = { .left = left, .kernel.id = -ENOMEM };

	if (left) {
		of.kernel_skip = tracing_frames(&left->kernel,
						__sched_text_start,
						__sched_text_end);
		of.kernel = find_taken(&ig_kstack,
				       without_frames(&left->kernel,
						      of.kernel_skip),
				       left->kernel_taken, 0);
	}
	if (fill_process_of(task, ustack)) {
		if (left)
			of.user = find_user_stack(ustack, &left->user,
						  left->user_taken);
		else
			ustack->stack_id = -ENOMEM;
	}
	scratch->key.user_stack_key = ustack->stack_id;
	put_kernel_stack(of.kernel.id, &scratch->key.kern_stack_raw,
			 &scratch->key.kern_stack_id);
	return of;
}

static __always_inline void keep_stacks_of_next(struct stacks_of_next *of)
{
	if (!of->left)
		return;
	keep_frames(&ig_kstack, &of->kernel,
		    without_frames(&of->left->kernel, of->kernel_skip));
	keep_frames(&ig_ustack, &of->user, &of->left->user);
}

#endif /* PROFILE_OFFCPU_BACK_H */
