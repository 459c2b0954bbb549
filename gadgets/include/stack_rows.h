/* SPDX-License-Identifier: GPL-2.0 */
/*
 * These rows add up events by process and stack. The stacks come from the unwinder (unwind.h), or
 * else from frame pointers.
 *
 * Before it includes this file, a gadget defines two structs, with the same members as in
 * profile_cpu. struct row_key identifies a row. struct row_value has the row's counts and the stack
 * of its first event. The gadget also defines this function, which atomically adds an event to the
 * counts of a row:
 *
 *	static void add_counts(struct row_value *row, const struct drawn *event)
 */
#ifndef STACK_ROWS_H
#define STACK_ROWS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

#include "drawn_events.h"
#include "per_cpu.h"
#include "rows.h"
#include "stack_maps.h"
#include "unwind.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* rows_max_entries */
	__type(key, struct row_key);
	__type(value, struct row_value);
} rows SEC(".maps");

/* Per CPU: memory for a new row, and events without room. */
struct scratch_row {
	struct row_key key;
	struct row_value value; /* its counts stay 0 */
	struct drawn homeless; /* rows was full */
	struct drawn unseen; /* for the gadget's own use: it had no room elsewhere */
};

PER_CPU(struct scratch_row, scratch_rows)

/* A row whose frames come from the unwinder, see unwind.h. */
struct unwound_row {
	__u64 id;
	struct row_key key;
	struct row_value value;
};

/* Puts the stacks of the current thread into the row in scratch. kernel_id is the ID of its kernel stack. */
static __always_inline void put_stacks(void *ctx, struct scratch_row *scratch,
				       __u32 kernel_id)
{
	scratch->key.user_stack_key =
		put_user_stack(ctx, &scratch->value.user_stack_raw,
			       &scratch->value.user_stack_id);
	put_kernel_stack(kernel_id, &scratch->key.kern_stack_raw,
			 &scratch->key.kern_stack_id);
}

/* Leaves the row in scratch without stacks, because the unwinder has them or they are missing. */
static __always_inline void put_no_stacks(struct scratch_row *scratch)
{
	struct row_stacks *stacks = row_stacks_here();

	if (stacks)
		stacks->found_user.fresh = 0;
	user_stack_form(&scratch->value.user_stack_raw,
			&scratch->value.user_stack_id);
	scratch->key.user_stack_key = 0;
	put_kernel_stack(no_kernel_stack_id(), &scratch->key.kern_stack_raw,
			 &scratch->key.kern_stack_id);
}

/*
 * Passes the event in scratch to the unwinder. Its unwound_id must be 0. Returns true if the event is
 * finished, or false if the caller must use frame pointers.
 */
static __always_inline bool unwind_row(void *ctx, const enum unwind_chain chain,
				       struct scratch_row *scratch,
				       const struct drawn *event)
{
	struct unwound_row *row;
	enum unwind_result result = UNWIND_OVER_BUDGET;
	__u64 id = 0;

	if (unwind_is_over())
		return true;
	if (!event->over_budget)
		result = unwind(ctx, chain, &id);
	if (result == UNWIND_DONE) {
		row = bpf_ringbuf_reserve(&unwound, sizeof(*row), 0);
		if (row) {
			put_no_stacks(scratch);
			row->id = id;
			row->key = scratch->key;
			row->value = scratch->value;
			add_counts(&row->value, event);
			submit_unwound(row);
		} else {
			result = UNWIND_NO_ROOM;
		}
	}
	count_unwind(result, event->value);
	scratch->key.unwound_id = UNWIND_FELL_BACK;
	return result == UNWIND_DONE;
}

/*
 * Adds an event to the row in scratch, and reports whether there is room for it. proc is as in row_of.
 */
static __always_inline bool add_to_row(struct scratch_row *scratch,
				       const struct profiles_process *proc,
				       const struct drawn *event)
{
	struct row_value *row = row_of(&rows, proc, &scratch->key, &scratch->value);

	if (row)
		add_counts(row, event);
	return row;
}

/* Adds the event in scratch to its row, or else to the events without room. */
static __always_inline bool add_event(struct scratch_row *scratch,
				      const struct drawn *event)
{
	if (add_to_row(scratch, &scratch->key.proc, event))
		return true;
	scratch->homeless.value += event->value;
	scratch->homeless.events += event->events;
	return false;
}

/* Empties the row in scratch. */
static __always_inline void clear_row(struct scratch_row *scratch)
{
	__builtin_memset(&scratch->key, 0, sizeof(scratch->key));
	__builtin_memset(&scratch->value, 0, sizeof(scratch->value));
}

/*
 * Adds the events without room to the row in scratch, as soon as there is room for it. The row has no
 * process and no stack. So the sum of all rows stays right.
 */
static __always_inline void add_homeless(struct scratch_row *scratch,
					 struct drawn *homeless)
{
	if (add_to_row(scratch, NULL, homeless)) {
		homeless->value = 0;
		homeless->events = 0;
	}
}

/* Calls add_homeless, for a gadget with one kind of such events. */
static __always_inline void add_all_homeless(struct scratch_row *scratch)
{
	if (!scratch->homeless.events)
		return;
	clear_row(scratch);
	name_row(&scratch->key.proc, "[rows full]");
	add_homeless(scratch, &scratch->homeless);
}

#endif /* STACK_ROWS_H */
