/* SPDX-License-Identifier: GPL-2.0 */
/* Rows, and waits without room among them. */
#ifndef PROFILE_OFFCPU_ROW_H
#define PROFILE_OFFCPU_ROW_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#include "../include/process.h"
#include "../include/rows.h"
#include "../include/stack_maps.h"
#include "../include/unwind.h"
#include "call.h"
#include "reason.h"

/*
 * The identity of a row. Nothing in it may change from wait to wait.
 */
struct wait_key {
	struct profiles_process proc;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	profiles_stack_key user_stack_key;
	enum off_cpu_reason reason_raw;
	enum off_cpu_call call_raw;
	profiles_stack unwound_id;
};

struct wait_value {
	gadget_duration off_cpu_raw;
	__u64 switches;
	/* From the row's first switch. */
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* rows_max_entries */
	__type(key, struct wait_key);
	__type(value, struct wait_value);
} rows SEC(".maps");

GADGET_MAPITER(offcpu, rows);

/* Per CPU: memory for a new row, and waits without room. */
struct scratch_row {
	struct wait_key key;
	struct wait_value value;
	/* The table of rows was full. */
	struct homeless {
		__u64 time;
		__u64 switches;
	} homeless;
	/* absences was full, so the time of these waits is unknown. */
	struct homeless unseen;
};

/* A row whose frames come from the unwinder, see unwind.h. */
struct unwound_row {
	__u64 id;
	struct wait_key key;
	struct wait_value value;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch_row);
} scratch_rows SEC(".maps");

/*
 * Adds to the row in scratch, and reports whether there is room for it. proc is as in row_of.
 */
static __always_inline bool add(struct scratch_row *scratch,
				const struct profiles_process *proc,
				__u64 time, __u64 switches)
{
	struct wait_value *row = row_of(&rows, proc, &scratch->key, &scratch->value);

	if (!row)
		return false;
	__sync_fetch_and_add(&row->off_cpu_raw, time);
	__sync_fetch_and_add(&row->switches, switches);
	return true;
}

/*
 * As soon as there is room, a row without process and stack gets the waits without room, so the sum
 * of all rows stays right.
 */
static __always_inline void add_homeless(struct scratch_row *scratch,
					 struct homeless *homeless,
					 bool rows_full)
{
	__builtin_memset(&scratch->key, 0, sizeof(scratch->key));
	__builtin_memset(&scratch->value, 0, sizeof(scratch->value));
	if (rows_full)
		name_row(&scratch->key.proc, "[rows full]");
	else
		name_row(&scratch->key.proc, "[threads full]");
	scratch->key.reason_raw = other;
	if (add(scratch, NULL, homeless->time, homeless->switches)) {
		homeless->time = 0;
		homeless->switches = 0;
	}
}

#endif /* PROFILE_OFFCPU_ROW_H */
