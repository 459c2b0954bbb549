/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Kernel and user stacks of rows, for Inspektor Gadget's formatters and for
 * otel-profiles. In three steps:
 *
 *	put_user_stack,		walk a stack of the current thread, and put its
 *	put_kernel_stack	present or future ID into a row
 *	row_of			of rows.h finds the row, or makes it
 *	keep_stacks		puts the stacks into the maps
 *
 * Only stacks of rows are kept, because others would push these out of the maps.
 *
 * Programs that walk and keep stacks in different threads use stack_ids.h and these functions:
 *
 *	take_*		walks a stack into memory of the caller
 *	fill_process_of	of stack_process.h, for a user stack
 */
#ifndef STACK_MAPS_H
#define STACK_MAPS_H

#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#include "per_cpu.h"
#include "stack_ids.h"
#include "stack_process.h"

/* Reports whether a parameter with the values auto, true and false is true. */
static __always_inline bool is_true(const volatile char *param)
{
	return param[0] == 't';
}

/*
 * --format-stacks: with "true", Inspektor Gadget turns the stacks of each row into text, which is
 * more than half of a run's cost. With "false", a row has IDs in the types below. Only otel-profiles
 * reads them, once per distinct stack. otel-profiles changes "auto" to "false" if nobody reads the
 * text.
 */
const volatile char format_stacks[8] = "auto";
GADGET_PARAM(format_stacks);

#define stacks_by_id (format_stacks[0] == 'f')

/* The ID of a user stack in a row's key, for otel-profiles only. */
typedef __u64 profiles_stack_key;

/* The ID of a stack in ig_kstack. */
typedef __u32 profiles_kernel_stack;

/* The members of struct gadget_user_stack, with the ID in ig_ustack. */
struct profiles_user_stack {
	__u32 major;
	__u32 minor;
	__u64 inode;
	__u64 mtime_sec;
	__u32 mtime_nsec;
	__u32 base_addr_hash;
	__u32 stack_id;
	__u32 tgid_level0;
	__u32 pid_level0;
	__u32 pidns_level0;
	__u32 pid_level1;
	__u32 pidns_level1;
	__u64 otel_correlation_id;
	__u64 boot_timestamp;
};
_Static_assert(sizeof(struct profiles_user_stack) ==
		       sizeof(struct gadget_user_stack),
	       "one is filled as the other");

/* The maximum number of frames of the tracing itself on a stack. */
#define TRACING_DEPTH 16

/* A kernel stack with the tracing's frames. */
typedef __u64 deep_frames[STACK_DEPTH + TRACING_DEPTH];

/*
 * Per CPU: the stacks of the current row. A stack has 1 kB, too much for the BPF stack. Programs
 * that use them run with preemption off and do not nest on a CPU.
 */
struct row_stacks {
	stack_frames user;
	deep_frames kernel;
	__u32 kernel_skip; /* the number of the tracing's frames in kernel */
	struct found_stack found_user;
	struct found_stack found_kernel;
};

PER_CPU(struct row_stacks, row_stacks)

/*
 * Walks the user stack of the current thread. The kernel cannot walk another thread's.
 */
static __always_inline long take_user_frames(void *ctx, stack_frames *frames)
{
	return bpf_get_stack(ctx, frames, sizeof(*frames), BPF_F_USER_STACK);
}

/* Walks the current kernel stack. */
static __always_inline long take_kernel_frames(void *ctx, deep_frames *frames)
{
	return bpf_get_stack(ctx, frames, sizeof(*frames), 0);
}

/*
 * Counts the frames of the tracing at the leaf of a kernel stack from a program on a tracepoint or
 * function. They are the frames before the first address within [start, end). Their number depends
 * on the kernel and on other tracers. It is 0 if there is no such address, or if both are 0 because
 * the kernel hides them (kernel_symbol.h). It is also 0 for a stack that the kernel cut at its
 * limit. User space recognizes such a stack by its full entry, and removes these frames.
 */
static __always_inline __u32 tracing_frames(const deep_frames *frames,
					    __u64 start, __u64 end)
{
	if (!end || (*frames)[STACK_DEPTH - 1])
		return 0;
	for (int i = 0; i < TRACING_DEPTH; i++)
		if ((*frames)[i] >= start && (*frames)[i] < end)
			return i;
	return 0;
}

/* A kernel stack without the given number of frames at its leaf. */
static __always_inline const stack_frames *
without_frames(const deep_frames *frames, __u32 skip)
{
	return (const void *)&(*frames)[skip % TRACING_DEPTH];
}

/*
 * Walks the current kernel stack, for put_kernel_stack and keep_stacks, and returns its present or
 * future ID. The stack begins at the first address within [start, end), see tracing_frames. A
 * sampler passes 0 for both.
 */
static __always_inline __u32 kernel_stack_id_from(void *ctx, __u64 start,
						  __u64 end)
{
	struct row_stacks *stacks = row_stacks_here();
	long taken;

	if (!stacks)
		return -ENOENT;
	taken = take_kernel_frames(ctx, &stacks->kernel);
	stacks->kernel_skip = tracing_frames(&stacks->kernel, start, end);
	stacks->found_kernel = find_taken(
		&ig_kstack, without_frames(&stacks->kernel, stacks->kernel_skip),
		taken, 0);
	return stacks->found_kernel.id;
}

/* The same for a fault or call in user mode, where the kernel's stack has no information. */
static __always_inline __u32 no_kernel_stack_id(void)
{
	struct row_stacks *stacks = row_stacks_here();

	if (stacks)
		stacks->found_kernel.fresh = 0;
	return no_stack_id(&ig_kstack);
}

/*
 * Finds a user stack from take_user_frames for the process from fill_process_of.
 */
static __always_inline struct found_stack
find_user_stack(struct gadget_user_stack *ustack, const stack_frames *frames,
		long taken)
{
	struct found_stack found = find_taken(&ig_ustack, frames, taken,
					      ustack->base_addr_hash);

	ustack->stack_id = found.id;
	return found;
}

/* Walks and finds the user stack of the current thread, for keep_stacks. */
static __always_inline void fill_user_stack(void *ctx,
					    struct gadget_user_stack *ustack)
{
	struct row_stacks *stacks = row_stacks_here();

	if (!stacks)
		return;
	stacks->found_user.fresh = 0;
	if (!fill_process_of(bpf_get_current_task_btf(), ustack))
		return;
	stacks->found_user = find_user_stack(ustack, &stacks->user,
					     take_user_frames(ctx, &stacks->user));
}

/*
 * Keeps the stacks of the last row on this CPU. Call it when the row exists.
 */
static __always_inline void keep_stacks(void)
{
	struct row_stacks *stacks = row_stacks_here();

	if (!stacks)
		return;
	keep_frames(&ig_kstack, &stacks->found_kernel,
		    without_frames(&stacks->kernel, stacks->kernel_skip));
	keep_frames(&ig_ustack, &stacks->found_user, &stacks->user);
}

/* Puts the ID of a kernel stack into the requested field of a row. */
static __always_inline void put_kernel_stack(__u32 id, gadget_kernel_stack *raw,
					     profiles_kernel_stack *by_id)
{
	*raw = stacks_by_id ? no_stack_id(&ig_kstack) : id;
	*by_id = stacks_by_id ? id : 0;
}

/*
 * Returns the requested form of a row's user stack, and clears the other form.
 */
static __always_inline struct gadget_user_stack *
user_stack_form(struct gadget_user_stack *raw, struct profiles_user_stack *by_id)
{
	__builtin_memset(raw, 0, sizeof(*raw));
	__builtin_memset(by_id, 0, sizeof(*by_id));
	return stacks_by_id ? (struct gadget_user_stack *)by_id : raw;
}

/*
 * Walks the user stack of the current thread and puts its ID, which it returns,
 * into a row. keep_stacks keeps it.
 */
static __always_inline __u32
put_user_stack(void *ctx, struct gadget_user_stack *raw,
	       struct profiles_user_stack *by_id)
{
	struct gadget_user_stack *ustack = user_stack_form(raw, by_id);

	fill_user_stack(ctx, ustack);
	return ustack->stack_id;
}

#endif /* STACK_MAPS_H */
