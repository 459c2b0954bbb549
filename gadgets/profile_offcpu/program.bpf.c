// SPDX-License-Identifier: GPL-2.0
/*
 * profile_offcpu: where threads wait.
 *
 * At each switch from one thread to another, ig_profile_offcpu remembers when
 * and why a thread leaves the CPU. When it is back and the wait passes the
 * filters, the time is added to the sum of its stacks. User space reads and
 * clears the sums every --map-fetch-interval, so each row is what was new since
 * the last one.
 *
 * A user stack can only be walked by its own thread, and a switch runs on the
 * stack of the one that leaves. There are two ways:
 *
 *  - Linux 6.15 and later have the tracepoint sched_exit_tp, which the thread
 *    that is back passes next: ig_offcpu_back walks both stacks there.
 *  - Without it, the stacks are walked at the switch and wait in a record of the
 *    thread. They enter the maps of stacks when the thread is back: there they
 *    would be dropped during a long wait.
 *
 * back_in_thread says which one it is. Where the kernel has the tracepoint,
 * otel-profiles attaches ig_offcpu_back and says so: see gadget.yaml.
 */
#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <gadget/types.h>
#include <gadget/macros.h>

/* As in gadget.yaml. */
#define USER_STACKS 32768

#include "../include/process.h"
#include "../include/rows.h"
#include "../include/stack_maps.h"

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
 * tracing are left out. Where the kernel hides the addresses of its symbols, the
 * gadget cannot be loaded; where it has none, these are 0 and the stack is kept as
 * it is.
 */
extern void __sched_text_start __ksym __weak;
extern void __sched_text_end __ksym __weak;

/* As KERNEL_VERSION(5, 18, 0): sched_switch has the argument prev_state. */
#define HAS_PREV_STATE (5 << 16 | 18 << 8)
extern int LINUX_KERNEL_VERSION __kconfig;

/*
 * --sched-exit: whether ig_offcpu_back is attached. What is not "true" means no,
 * so does "auto" where nobody has looked for the tracepoint.
 */
const volatile char sched_exit[8] = "auto";
GADGET_PARAM(sched_exit);

#define back_in_thread is_true(sched_exit)

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
	struct profiles_process proc;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	profiles_stack_key user_stack_key;
	enum off_cpu_reason reason_raw;
	/* Keys are compared byte by byte. */
	__u32 __padding;
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
	__uint(max_entries, 0); /* rows_max_entries */
	__type(key, struct wait_key);
	__type(value, struct wait_value);
} rows SEC(".maps");

GADGET_MAPITER(offcpu, rows);

/*
 * When and why threads have left, by their ID; where stacks are walked then, only
 * of those for which there is no room in left_stacks. All of it is allocated at the
 * start: a switch holds locks under which memory cannot be had. An entry stays until
 * its thread ends.
 */
const volatile int absences_max_entries = 65536;

struct absence {
	__u64 since; /* 0 for a thread that is back */
	enum off_cpu_reason reason;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* absences_max_entries */
	__type(key, __u32);
	__type(value, struct absence);
} absences SEC(".maps");

/* --thread-stacks, see gadget.yaml. Without use if back_in_thread. */
const volatile int left_stacks_max_entries = 16384;
GADGET_PARAM(left_stacks_max_entries);

/*
 * The stacks that a thread has left the CPU with. The kernel stack of a waiting
 * thread could be walked later, but bpf_get_task_stack leaves out all functions
 * of the scheduler, those that say what a thread waits for among them:
 * mutex_lock, do_nanosleep, io_schedule.
 */
struct left_stacks {
	struct absence absence;
	stack_frames user;
	deep_frames kernel;
	long user_taken; /* see find_taken */
	long kernel_taken;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* left_stacks_max_entries */
	__type(key, __u32);
	__type(value, struct left_stacks);
} left_stacks SEC(".maps");

/* Whether left_stacks was ever full: the absences of the threads above are in absences. */
static volatile bool overflowed;

/* What an entry of left_stacks begins as. */
static const struct left_stacks no_left_stacks;

/* Per CPU: room for a row on its way in, and what found none. */
struct scratch_row {
	struct wait_key key;
	struct wait_value value;
	/* The table of rows was full. */
	struct homeless {
		__u64 time;
		__u64 switches;
	} homeless;
	/* absences was full: how long these were is not known. */
	struct homeless unseen;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch_row);
} scratch_rows SEC(".maps");

/* Adds to the row in scratch, and reports whether there is room for it. */
static __always_inline bool add(struct scratch_row *scratch, __u64 time,
				__u64 switches)
{
	struct wait_value *row = row_of(&rows, &scratch->key, &scratch->value);

	if (!row)
		return false;
	__sync_fetch_and_add(&row->off_cpu_raw, time);
	__sync_fetch_and_add(&row->switches, switches);
	return true;
}

/*
 * What found no room is put into a row without process and stack as soon as
 * there is some, so that the sum of all rows stays right.
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
	if (add(scratch, homeless->time, homeless->switches)) {
		homeless->time = 0;
		homeless->switches = 0;
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

/* Keeps the stacks of the current thread until it is back, if there is room. */
static __always_inline struct left_stacks *keep_left_stacks(void *ctx, __u32 tid,
							    bool user)
{
	struct left_stacks *left = bpf_map_lookup_elem(&left_stacks, &tid);

	if (!left) {
		if (!bpf_map_update_elem(&left_stacks, &tid, &no_left_stacks,
					 BPF_NOEXIST))
			left = bpf_map_lookup_elem(&left_stacks, &tid);
		if (!left) {
			overflowed = true;
			return NULL;
		}
	}
	if (user)
		left->user_taken = take_user_frames(ctx, &left->user);
	left->kernel_taken = take_kernel_frames(ctx, &left->kernel);
	return left;
}

static __always_inline void forget(__u32 tid)
{
	if (!back_in_thread)
		bpf_map_delete_elem(&left_stacks, &tid);
	if (back_in_thread || overflowed)
		bpf_map_delete_elem(&absences, &tid);
}

/* Runs in the thread that leaves. */
static __always_inline void leave(void *ctx, bool preempt, __u32 state,
				  struct task_struct *task)
{
	struct left_stacks *left = NULL;
	struct scratch_row *scratch;
	struct absence *there, absence = {};
	struct profiles_process proc = {};
	__u32 zero = 0, tid = task->pid;

	/* Thread 0 is what a CPU runs when it has nothing to do. */
	if (!tid || (task->flags & PF_KTHREAD && !include_kernel_threads))
		return;
	if (!preempt && state & TASK_DEAD) {
		forget(tid);
		return;
	}

	if (!back_in_thread) {
		fill_process_from(task, &proc);
		if (unwanted(&proc))
			return;
		left = keep_left_stacks(ctx, tid, collect_ustack && task->mm);
	}
	absence.reason = reason_of(preempt, state);
	absence.since = bpf_ktime_get_ns();
	if (left) {
		left->absence = absence;
		return;
	}
	there = bpf_map_lookup_elem(&absences, &tid);
	if (there) {
		*there = absence;
	} else if (bpf_map_update_elem(&absences, &tid, &absence, BPF_ANY)) {
		scratch = bpf_map_lookup_elem(&scratch_rows, &zero);
		if (scratch)
			scratch->unseen.switches++;
	}
}

/*
 * The stacks of a thread that is back, where it runs already. They go to the
 * row in scratch.
 */
static __always_inline void stacks_of_current(void *ctx,
					      struct scratch_row *scratch)
{
	scratch->key.user_stack_key =
		put_user_stack(ctx, &scratch->value.user_stack_raw,
			       &scratch->value.user_stack_id);
	put_kernel_stack(kernel_stack_id_from(ctx, (__u64)&__sched_text_start,
					      (__u64)&__sched_text_end),
			 &scratch->key.kern_stack_raw,
			 &scratch->key.kern_stack_id);
}

/* The same where it is about to run: its stacks are those that it left with, if any. */
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
						(__u64)&__sched_text_start,
						(__u64)&__sched_text_end);
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

/*
 * Adds the wait of a thread that is back. ctx is that of a program which runs
 * in the thread, and NULL where it is about to run.
 */
static __always_inline void come_back(void *ctx, struct task_struct *task)
{
	struct stacks_of_next of_next = {};
	struct left_stacks *left = NULL;
	struct scratch_row *scratch;
	struct absence *absence = NULL;
	__u32 zero = 0, tid = task->pid;
	__u64 time;

	if (!back_in_thread)
		left = bpf_map_lookup_elem(&left_stacks, &tid);
	if (left)
		absence = &left->absence;
	else if (back_in_thread || overflowed)
		absence = bpf_map_lookup_elem(&absences, &tid);
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
	fill_process_from(task, &scratch->key.proc);
	if (ctx) {
		if (unwanted(&scratch->key.proc))
			return;
		stacks_of_current(ctx, scratch);
	} else {
		of_next = stacks_of_next(task, left, scratch);
	}
	scratch->key.reason_raw = absence->reason;
	scratch->value.off_cpu_raw = 0;
	scratch->value.switches = 0;
	if (!add(scratch, time, 1)) {
		scratch->homeless.time += time;
		scratch->homeless.switches++;
		return;
	}
	if (ctx)
		keep_stacks();
	else
		keep_stacks_of_next(&of_next);
	if (scratch->homeless.switches)
		add_homeless(scratch, &scratch->homeless, true);
	if (scratch->unseen.switches)
		add_homeless(scratch, &scratch->unseen, false);
}

/* Runs on behalf of prev, on its stack, with interrupts off. */
SEC("tp_btf/sched_switch")
int BPF_PROG(ig_profile_offcpu, bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	__u32 state;

	/* What another CPU has made of the state since is not why it leaves. */
	if (LINUX_KERNEL_VERSION >= HAS_PREV_STATE)
		state = ctx[3];
	else
		state = state_of(prev);
	leave(ctx, preempt, state, prev);
	if (!back_in_thread)
		come_back(NULL, next);
	return 0;
}

/*
 * Runs in a thread at the end of the scheduler, with preemption off. Not a
 * tp_btf program: no program of an image can be loaded if one's target is
 * missing.
 */
SEC("raw_tp/sched_exit_tp")
int ig_offcpu_back(struct bpf_raw_tracepoint_args *ctx)
{
	bool is_switch = ctx->args[0];

	if (back_in_thread && is_switch)
		come_back(ctx, bpf_get_current_task_btf());
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
