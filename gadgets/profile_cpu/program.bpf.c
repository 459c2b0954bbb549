// SPDX-License-Identifier: GPL-2.0
/*
 * profile_cpu: which functions burn CPU time.
 *
 * A timer interrupts every busy CPU --frequency times a second of CPU time and
 * calls ig_profile_cpu, which adds one to the entry of what it finds running:
 * process, kernel stack, user stack. User space reads and clears the map
 * every --map-fetch-interval, so each row is what was new since the last one.
 */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#include "../include/process.h"
#include "../include/rows.h"
#include "../include/stack_maps.h"

const volatile bool include_idle = false;
GADGET_PARAM(include_idle);

const volatile bool kernel_stacks = true;
GADGET_PARAM(kernel_stacks);

/*
 * What makes a row: nothing may be in here that changes from sample to
 * sample, or nothing would ever be added up.
 */
struct sample_key {
	struct profiles_process proc;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	profiles_stack_key user_stack_key;
};

struct sample_value {
	__u64 samples;
	/* As found by the row's first sample. */
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

/* Per CPU: room for a row on its way in, and samples that found none. */
struct scratch_row {
	struct sample_key key;
	struct sample_value value;
	__u64 homeless;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch_row);
} scratch_rows SEC(".maps");

/*
 * Samples for which the map had no room are counted and put into a row
 * without process and stack as soon as there is some, so that the sum of all
 * rows stays the number of samples.
 */
static __always_inline void add_homeless(struct scratch_row *scratch)
{
	struct sample_value *row;

	__builtin_memset(&scratch->key, 0, sizeof(scratch->key));
	__builtin_memset(&scratch->value, 0, sizeof(scratch->value));
	name_row(&scratch->key.proc, "[rows full]");
	row = row_of(&rows, &scratch->key, &scratch->value);
	if (row) {
		__sync_fetch_and_add(&row->samples, scratch->homeless);
		scratch->homeless = 0;
	}
}

SEC("perf_event/profiler")
int ig_profile_cpu(struct bpf_perf_event_data *ctx)
{
	gadget_tid tid = bpf_get_current_pid_tgid();
	__u32 zero = 0;
	struct scratch_row *scratch;
	struct sample_value *value, *row;
	struct sample_key *key;

	/* Thread 0 is what a CPU runs when it has nothing to do. */
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

	value->samples = 0;
	key->user_stack_key = put_user_stack(ctx, &value->user_stack_raw,
					    &value->user_stack_id);
	put_kernel_stack(kernel_stacks ? kernel_stack_id_from(ctx, 0, 0) :
					 no_kernel_stack_id(),
			 &key->kern_stack_raw, &key->kern_stack_id);

	row = row_of(&rows, key, value);
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
