// SPDX-License-Identifier: GPL-2.0
/*
 * profile_lock shows which code waits for locks of the kernel and of programs.
 *
 * The kernel reports the begin and end of a wait for its locks (tracepoints contention_begin and
 * contention_end, since Linux 5.19: see gadget.yaml). Programs wait for locks, and for other
 * things, in the system call futex. The operator captures finds the locks by the functions on the
 * stack.
 *
 * When a wait begins, only the time is noted. When it ends, it is sampled in proportion to its
 * duration (draw in capture.h). The stacks of a sampled wait are taken, and the operator makes a row.
 */
#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#define UNWIND_FROM_RAW_TP
#define UNWIND_FROM_TRACEPOINT

#include "../include/kernel_symbol.h"
#include "../include/process.h"
#include "../include/stack_maps.h"
#include "../include/capture.h"
#include "kinds.h"
#include "not_locks.h"
#include "row.h"
#include "waits.h"

/* One wait in this number of nanoseconds of waiting is sampled, on average. */
const volatile __u64 sample_time = 500000;
GADGET_PARAM(sample_time);

/* Whether other waits in futex count, too. The operator decides which ones are for locks. */
const volatile bool all_futex = false;
GADGET_PARAM(all_futex);

/*
 * --kernel-locks: whether otel-profiles attaches ig_kernel_begin and ig_kernel_end: see
 * gadget.yaml.
 */
const volatile char kernel_locks[8] = "auto";
GADGET_PARAM(kernel_locks);

/*
 * The code of the kernel's sleeping locks, followed by the code of its spinning locks. Without the
 * frames of the tracing, a stack begins there.
 */
KERNEL_SYMBOL(__sched_text_start);
KERNEL_SYMBOL(__lock_text_end);

/*
 * Begins work that uses a lock of the ring buffer or of a map, or memory per CPU. During this work,
 * the end of a wait for that lock or an interrupt can run another one of these programs. That inner
 * program gets NULL, and must do nothing.
 */
static __always_inline struct lock_cpu *begin_work(void)
{
	struct lock_cpu *cpu = cpus_here();

	if (!cpu || cpu->busy)
		return NULL;
	cpu->busy = 1;
	barrier();
	return cpu;
}

static __always_inline void end_work(struct lock_cpu *cpu)
{
	barrier();
	cpu->busy = 0;
}

/*
 * Counts a finished wait. chain is the program's chain: UNWIND_RAW_TP for a wait in the kernel.
 * place is the address if it can be in not_locks. shared: processes can share the lock.
 */
static __always_inline void count_wait(void *ctx, const enum unwind_chain chain,
				       enum lock_kind kind, __u64 lock,
				       __u64 place, bool shared, __u64 since)
{
	const bool in_kernel = chain == UNWIND_RAW_TP;
	__u64 delay = bpf_ktime_get_ns() - since, weight, contentions, stack_id;
	struct profiles_process proc = {};
	struct lock_capture *capture;
	struct lock_cpu *cpu;

	count_event();
	if (place && is_no_lock(place))
		return;
	/* If the clock has not advanced, nothing can be sampled. */
	if (!delay)
		delay = 1;
	weight = draw(delay, sample_time);
	if (!weight)
		return;
	fill_process(&proc);
	if (unwanted(&proc))
		return;
	contentions = drawn_events(delay, weight);
	cpu = begin_work();
	if (!cpu) {
		count_lost(weight, contentions);
		return;
	}
	stack_id = unwind_capture(ctx, chain,
				  in_kernel ? 0 : UNWIND_NO_KERNEL, weight);
	capture = bpf_ringbuf_reserve(&unwound, sizeof(*capture), 0);
	if (!capture) {
		count_lost(weight, contentions);
		end_work(cpu);
		return;
	}
	begin_capture(&capture->head, stack_id);
	capture->key.proc = proc;
	capture->key.kind_raw = kind;
	capture->key.__padding = 0;
	name_lock(&capture->key.address, lock, in_kernel);
	capture->value.delay_raw = weight;
	capture->value.contentions = contentions;
	capture->value.address_raw = place;
	capture->value.shared_raw = shared && lock_address ? lock : 0;
	__builtin_memset(capture->key.lock_file, 0,
			 sizeof(capture->key.lock_file));
	put_kernel_stack(in_kernel ? kernel_stack_id_from(ctx, __sched_text_start,
						    __lock_text_end) :
			       no_kernel_stack_id(),
			 &capture->key.kern_stack_raw,
			 &capture->key.kern_stack_id);
	keep_stacks();
	put_capture_stack(ctx, 0, capture);
	submit_unwound(capture);
	end_work(cpu);
}

SEC("raw_tp/contention_begin")
int ig_kernel_begin(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 lock = ctx->args[0];
	__u32 flags = ctx->args[1];
	struct lock_thread *thread;

	if (spins(flags)) {
		begin_spin(lock, flags);
		return 0;
	}
	thread = this_thread();
	if (!thread)
		return 0;
	/* A mutex begins a new wait at each change between spinning and sleeping. */
	if (thread->sleeps.since && thread->sleeps.lock == lock)
		return 0;
	/*
	 * With PREEMPT_RT, a call of futex can wait for a lock of the kernel. The wait in futex counts,
	 * not this one.
	 */
	if (flags & LCB_F_RT && thread->futex_since)
		return 0;
	thread->sleeps.lock = lock;
	thread->sleeps.flags = flags;
	thread->sleeps.since = bpf_ktime_get_ns();
	return 0;
}

SEC("raw_tp/contention_end")
int ig_kernel_end(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 tid = bpf_get_current_pid_tgid();
	__u64 lock = ctx->args[0];
	struct kernel_wait wait;
	struct lock_thread *thread;

	if (!end_spin(lock, &wait)) {
		thread = bpf_map_lookup_elem(&threads, &tid);
		if (!thread || !thread->sleeps.since ||
		    thread->sleeps.lock != lock)
			return 0;
		wait = thread->sleeps;
		thread->sleeps.since = 0;
	}
	count_wait(ctx, UNWIND_RAW_TP, kernel_kind(wait.flags), lock, 0, false,
		   wait.since);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_futex")
int ig_futex_begin(struct syscall_trace_enter *ctx)
{
	__u32 command = ctx->args[1] & FUTEX_COMMAND;
	struct lock_thread *thread;

	if (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET &&
	    command != FUTEX_LOCK_PI && command != FUTEX_LOCK_PI2 &&
	    command != FUTEX_WAIT_REQUEUE_PI)
		return 0;
	thread = this_thread();
	if (!thread)
		return 0;
	thread->futex_address = ctx->args[0];
	thread->futex_command = command;
	thread->futex_shared = !(ctx->args[1] & FUTEX_PRIVATE_FLAG);
	thread->futex_since = bpf_ktime_get_ns();
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_futex")
int ig_futex_end(struct syscall_trace_exit *ctx)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct lock_thread *thread = bpf_map_lookup_elem(&threads, &tid);
	enum lock_kind kind = user_futex;
	__u64 since, place = 0;

	if (!thread || !thread->futex_since)
		return 0;
	since = thread->futex_since;
	thread->futex_since = 0;
	if (thread->futex_command == FUTEX_LOCK_PI ||
	    thread->futex_command == FUTEX_LOCK_PI2)
		kind = user_pi_mutex;
	else if (thread->futex_command != FUTEX_WAIT && !all_futex)
		place = thread->futex_address;
	count_wait(ctx, UNWIND_TRACEPOINT, kind, thread->futex_address, place,
		   thread->futex_shared, since);
	return 0;
}

/* This is not sched_process_exit, because a thread can still wait for locks after that. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(ig_thread_free, struct task_struct *task)
{
	__u32 tid = task->pid;

	bpf_map_delete_elem(&threads, &tid);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
