// SPDX-License-Identifier: GPL-2.0
/*
 * profile_cpu shows which functions use CPU time.
 *
 * On every busy CPU, a timer calls ig_profile_cpu --frequency times per second of CPU time. The
 * function lets the unwinder collect the thread's stack, and sends a row with the stack's ID. If the
 * unwinder cannot do so, the function walks frame pointers and adds one to the row of the process
 * and its two stacks. User space reads and clears the map every --map-fetch-interval, so each row
 * has the samples since the previous read.
 */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#define UNWIND_FROM_PERF

#include "../include/drawn_events.h"
#include "../include/process.h"
#include "../include/stack_maps.h"
#include "../include/unwind.h"

const volatile bool include_idle = false;
GADGET_PARAM(include_idle);

const volatile bool kernel_stacks = true;
GADGET_PARAM(kernel_stacks);

/*
 * The identity of a row. Nothing in it may change from sample to sample.
 */
struct row_key {
	struct profiles_process proc;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	profiles_stack_key user_stack_key;
	profiles_stack unwound_id;
};

struct row_value {
	__u64 samples;
	/* From the row's first sample. */
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

static __always_inline void add_counts(struct row_value *row,
				       const struct drawn *event)
{
	__sync_fetch_and_add(&row->samples, event->events);
}

#include "../include/stack_rows.h"

GADGET_MAPITER(samples, rows);

SEC("perf_event/profiler")
int ig_profile_cpu(struct bpf_perf_event_data *ctx)
{
	gadget_tid tid = bpf_get_current_pid_tgid();
	struct drawn sample = { .value = 1, .events = 1 };
	struct scratch_row *scratch;

	/* Thread 0 is the idle thread. */
	if (!tid && !include_idle)
		return 0;

	scratch = scratch_rows_here();
	if (!scratch)
		return 0;

	fill_process(&scratch->key.proc);
	if (unwanted(&scratch->key.proc))
		return 0;

	/* An idle CPU is in the kernel, so it needs no unwinder. */
	scratch->key.unwound_id = 0;
	if (unwind_on && collect_ustack && tid &&
	    unwind_row(ctx, UNWIND_PERF, scratch, &sample))
		return 0;

	put_stacks(ctx, scratch,
		   kernel_stacks ? kernel_stack_id_from(ctx, 0, 0) :
				   no_kernel_stack_id());
	if (!add_event(scratch, &sample))
		return 0;
	keep_stacks();
	add_all_homeless(scratch);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
