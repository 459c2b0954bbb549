/* SPDX-License-Identifier: GPL-2.0 */
/* Rows, and waits without room among them. */
#ifndef PROFILE_OFFCPU_ROW_H
#define PROFILE_OFFCPU_ROW_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#include "../include/drawn_events.h"
#include "../include/process.h"
#include "../include/stack_maps.h"
#include "../include/unwind.h"
#include "call.h"
#include "reason.h"

/*
 * The identity of a row. Nothing in it may change from wait to wait.
 */
struct row_key {
	struct profiles_process proc;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	profiles_stack_key user_stack_key;
	enum off_cpu_reason reason_raw;
	enum off_cpu_call call_raw;
	profiles_stack unwound_id;
};

struct row_value {
	gadget_duration off_cpu_raw;
	__u64 switches;
	/* From the row's first switch. */
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

static __always_inline void add_counts(struct row_value *row,
				       const struct drawn *event)
{
	__sync_fetch_and_add(&row->off_cpu_raw, event->value);
	__sync_fetch_and_add(&row->switches, event->events);
}

#include "../include/stack_rows.h"

GADGET_MAPITER(offcpu, rows);

/*
 * Adds the waits without room. Either the map rows was full, or the map absences was full, so the time
 * of the wait is unknown.
 */
static __always_inline void add_homeless_waits(struct scratch_row *scratch)
{
	if (scratch->homeless.events) {
		clear_row(scratch);
		name_row(&scratch->key.proc, "[rows full]");
		scratch->key.reason_raw = other;
		add_homeless(scratch, &scratch->homeless);
	}
	if (scratch->unseen.events) {
		clear_row(scratch);
		name_row(&scratch->key.proc, "[threads full]");
		scratch->key.reason_raw = other;
		add_homeless(scratch, &scratch->unseen);
	}
}

#endif /* PROFILE_OFFCPU_ROW_H */
