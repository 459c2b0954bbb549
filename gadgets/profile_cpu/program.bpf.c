// SPDX-License-Identifier: GPL-2.0
/*
 * profile_cpu shows which functions use CPU time.
 *
 * A timer interrupts every busy CPU --frequency times a second of CPU time and calls
 * ig_profile_cpu. It lets the unwinder take the thread's stack, and sends a row with the stack's
 * ID. Otherwise, it walks frame pointers and adds one to the row of the process and its two stacks.
 * User space reads and clears the map every --map-fetch-interval, so each row has the samples since
 * the last one.
 */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#define UNWIND_FROM_PERF

#include "../include/process.h"
#include "../include/rows.h"
#include "../include/stack_maps.h"
#include "../include/unwind.h"

const volatile bool include_idle = false;
GADGET_PARAM(include_idle);

const volatile bool kernel_stacks = true;
GADGET_PARAM(kernel_stacks);

/*
 * The identity of a row. Nothing in it may change from sample to sample.
 */
struct sample_key {
	struct profiles_process proc;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	profiles_stack_key user_stack_key;
	profiles_stack unwound_id;
};

struct sample_value {
	__u64 samples;
	/* From the row's first sample. */
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* rows_max_entries */
	__type(key, struct sample_key);
	__type(value, struct sample_value);
} rows SEC(".maps");

GADGET_MAPITER(samples, rows);

/* Per CPU: memory for a new row, and samples without room. */
struct scratch_row {
	struct sample_key key;
	struct sample_value value;
	__u64 homeless;
};

/* A row whose frames come from the unwinder, see unwind.h. */
struct unwound_row {
	__u64 id;
	struct sample_key key;
	struct sample_value value;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch_row);
} scratch_rows SEC(".maps");

/*
 * Counts the samples without room in the map. As soon as there is room, a row without process and
 * stack gets them, so all rows add up to the number of samples.
 */
static __always_inline void add_homeless(struct scratch_row *scratch)
{
	struct sample_value *row;

	__builtin_memset(&scratch->key, 0, sizeof(scratch->key));
	__builtin_memset(&scratch->value, 0, sizeof(scratch->value));
	name_row(&scratch->key.proc, "[rows full]");
	row = row_of(&rows, NULL, &scratch->key, &scratch->value);
	if (row) {
		__sync_fetch_and_add(&row->samples, scratch->homeless);
		scratch->homeless = 0;
	}
}

/*
 * Hands the sample in scratch to the unwinder. Returns false if frame pointers must be used.
 */
static __always_inline bool unwind_sample(void *ctx, struct scratch_row *scratch)
{
	struct unwound_row *row;
	enum unwind_result result;
	__u64 id = 0;

	result = unwind(ctx, UNWIND_PERF, &id);
	if (result == UNWIND_DONE) {
		row = bpf_ringbuf_reserve(&unwound, sizeof(*row), 0);
		if (row) {
			__builtin_memset(row, 0, sizeof(*row));
			row->id = id;
			row->key.proc = scratch->key.proc;
			put_kernel_stack(no_stack_id(&ig_kstack),
					 &row->key.kern_stack_raw,
					 &row->key.kern_stack_id);
			row->value.samples = 1;
			submit_unwound(row);
		} else {
			result = UNWIND_NO_ROOM;
		}
	}
	count_unwind(result, 1);
	return result == UNWIND_DONE;
}

SEC("perf_event/profiler")
int ig_profile_cpu(struct bpf_perf_event_data *ctx)
{
	gadget_tid tid = bpf_get_current_pid_tgid();
	__u32 zero = 0;
	struct scratch_row *scratch;
	struct sample_value *value, *row;
	struct sample_key *key;

	/* Thread 0 is the idle thread. */
	if (!tid && !include_idle)
		return 0;

	scratch = bpf_map_lookup_elem(&scratch_rows, &zero);
	if (!scratch)
		return 0;
	key = &scratch->key;
	value = &scratch->value;

	fill_process(&key->proc);
	if (unwanted(&key->proc))
		return 0;

	/* An idle CPU is in the kernel, so it needs no unwinder. */
	key->unwound_id = 0;
	if (unwind_on && collect_ustack && tid) {
		if (unwind_is_over() || unwind_sample(ctx, scratch))
			return 0;
		key->unwound_id = UNWIND_FELL_BACK;
	}

	value->samples = 0;
	key->user_stack_key = put_user_stack(ctx, &value->user_stack_raw,
					    &value->user_stack_id);
	put_kernel_stack(kernel_stacks ? kernel_stack_id_from(ctx, 0, 0) :
					 no_kernel_stack_id(),
			 &key->kern_stack_raw, &key->kern_stack_id);

	row = row_of(&rows, &key->proc, key, value);
	if (!row) {
		scratch->homeless++;
		return 0;
	}
	__sync_fetch_and_add(&row->samples, 1);
	keep_stacks();
	if (scratch->homeless)
		add_homeless(scratch);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
