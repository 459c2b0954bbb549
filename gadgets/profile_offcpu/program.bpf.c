// SPDX-License-Identifier: GPL-2.0
/*
 * profile_offcpu: where threads wait.
 *
 * At each switch from one thread to another, ig_profile_offcpu remembers the
 * time and the stack of the one that leaves the CPU, and adds up the time of
 * the one that comes back. User space reads and clears the sums every
 * --map-fetch-interval, so each row is what was new since the last one.
 */
#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#include "../include/process.h"
#include "../include/stack_maps.h"

#define MAX_ROWS 16384

/* From include/linux/sched.h. */
#define TASK_INTERRUPTIBLE 0x0001
#define TASK_UNINTERRUPTIBLE 0x0002
#define TASK_DEAD 0x0080
#define PF_KTHREAD 0x00200000

const volatile bool include_kernel_threads = false;
GADGET_PARAM(include_kernel_threads);

const volatile __u64 min_duration_us = 0;
GADGET_PARAM(min_duration_us);

const volatile __u64 max_duration_us = 0;
GADGET_PARAM(max_duration_us);

/*
 * The code of the scheduler, which a stack begins with once the frames of the
 * tracing are left out. Where the kernel hides the addresses of its symbols,
 * these are 0 and the stack is kept as it is.
 */
extern void __sched_text_start __ksym __weak;
extern void __sched_text_end __ksym __weak;

/* Why the thread left the CPU; the names are what users see. */
enum off_cpu_reason {
	/* It could have gone on, but had to let others run. */
	preempted,
	/* It waits, and a signal can wake it: for input, a timer, a lock. */
	sleeping,
	/* It waits, and only what it waits for can wake it: often a disk. */
	uninterruptible,
	/* It is stopped, traced or frozen, or was just woken. */
	other,
};

/*
 * What makes a row: nothing may be in here that changes from time to time, or
 * nothing would ever be added up.
 */
struct wait_key {
	struct process proc;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	__u32 user_stack_key;
	enum off_cpu_reason reason_raw;
};

struct wait_value {
	gadget_duration off_cpu_raw;
	__u64 switches;
	/* As found by the row's first switch. */
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ROWS);
	__type(key, struct wait_key);
	__type(value, struct wait_value);
} rows SEC(".maps");

GADGET_MAPITER(offcpu, rows);

/* A thread that is off the CPU. It goes with the thread. */
struct absence {
	__u64 since;
	struct wait_key key;
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct absence);
} absences SEC(".maps");

/* Per CPU: room for a row on its way in, and time that found none. */
struct scratch_row {
	struct wait_key key;
	struct wait_value value;
	__u64 homeless_time;
	__u64 homeless_switches;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch_row);
} scratch_rows SEC(".maps");

static __always_inline long add(const struct wait_key *key,
				const struct wait_value *value)
{
	struct wait_value *row = bpf_map_lookup_elem(&rows, key);
	long err;

	if (!row) {
		err = bpf_map_update_elem(&rows, key, value, BPF_NOEXIST);
		if (err != -EEXIST)
			return err;
		/* Another CPU was faster. */
		row = bpf_map_lookup_elem(&rows, key);
		if (!row)
			return -ENOENT;
	}
	__sync_fetch_and_add(&row->off_cpu_raw, value->off_cpu_raw);
	__sync_fetch_and_add(&row->switches, value->switches);
	return 0;
}

/*
 * Time for which the map had no room is put into a row without process and
 * stack as soon as there is some, so that the sum of all rows stays right.
 */
static __always_inline void add_homeless(struct scratch_row *scratch)
{
	__builtin_memset(&scratch->key, 0, sizeof(scratch->key));
	__builtin_memset(&scratch->value, 0, sizeof(scratch->value));
	name_row(&scratch->key.proc, "[rows full]");
	scratch->key.reason_raw = other;
	scratch->value.off_cpu_raw = scratch->homeless_time;
	scratch->value.switches = scratch->homeless_switches;
	if (!add(&scratch->key, &scratch->value)) {
		scratch->homeless_time = 0;
		scratch->homeless_switches = 0;
	}
}

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
	/* A thread that is preempted on its way to sleep has a state, too. */
	if (preempt || !state)
		return preempted;
	if (state & TASK_UNINTERRUPTIBLE)
		return uninterruptible;
	if (state & TASK_INTERRUPTIBLE)
		return sleeping;
	return other;
}

static __always_inline void leave(void *ctx, bool preempt,
				  struct task_struct *task)
{
	struct absence *absence;
	__u32 state;

	/* Thread 0 is what a CPU runs when it has nothing to do. */
	if (!task->pid || (task->flags & PF_KTHREAD && !include_kernel_threads))
		return;
	state = state_of(task);
	if (!preempt && state & TASK_DEAD)
		return;

	absence = bpf_task_storage_get(&absences, task, NULL,
				       BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!absence)
		return;
	absence->since = 0;
	fill_process(&absence->key.proc);
	if (unwanted(&absence->key.proc))
		return;

	absence->key.user_stack_key = put_user_stack(
		ctx, &absence->user_stack_raw, &absence->user_stack_id);
	put_kernel_stack(kernel_stack_id_from(ctx, (__u64)&__sched_text_start,
					      (__u64)&__sched_text_end),
			 &absence->key.kern_stack_raw,
			 &absence->key.kern_stack_id);
	absence->key.reason_raw = reason_of(preempt, state);
	absence->since = bpf_ktime_get_ns();
}

static __always_inline void come_back(struct task_struct *task)
{
	struct scratch_row *scratch;
	struct absence *absence;
	__u32 zero = 0;
	__u64 time;

	absence = bpf_task_storage_get(&absences, task, NULL, 0);
	if (!absence || !absence->since)
		return;
	time = bpf_ktime_get_ns() - absence->since;
	absence->since = 0;
	if (time < min_duration_us * 1000 ||
	    (max_duration_us && time > max_duration_us * 1000))
		return;

	scratch = bpf_map_lookup_elem(&scratch_rows, &zero);
	if (!scratch)
		return;
	scratch->value.off_cpu_raw = time;
	scratch->value.switches = 1;
	scratch->value.user_stack_raw = absence->user_stack_raw;
	scratch->value.user_stack_id = absence->user_stack_id;
	if (add(&absence->key, &scratch->value)) {
		scratch->homeless_time += time;
		scratch->homeless_switches++;
	} else if (scratch->homeless_switches) {
		add_homeless(scratch);
	}
}

/* Runs on behalf of prev, on its stack, with interrupts off. */
SEC("tp_btf/sched_switch")
int BPF_PROG(ig_profile_offcpu, bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	leave(ctx, preempt, prev);
	come_back(next);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
