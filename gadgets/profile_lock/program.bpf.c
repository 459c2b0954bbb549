// SPDX-License-Identifier: GPL-2.0
/*
 * profile_lock: which code waits for locks, of the kernel and of programs.
 *
 * The kernel says when a wait for one of its locks begins and ends (tracepoints
 * contention_begin and contention_end, since Linux 5.19: see gadget.yaml). The locks
 * of programs wait in the system call futex, as other things do: the operator captures
 * finds out by the functions on the stack which are locks.
 *
 * The begin of a wait only notes the time. At its end the wait is drawn by its
 * duration (draw in capture.h); of one that is drawn, the stacks are taken, and the
 * operator makes a row of them.
 */
#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <gadget/types.h>
#include <gadget/macros.h>

/* The operator has the rows: the map stays empty. */
#define ROWS 1

#include "../include/process.h"
#include "../include/rows.h"
#include "../include/stack_maps.h"
#include "../include/capture.h"

/* From include/trace/events/lock.h. */
#define LCB_F_SPIN (1u << 0)
#define LCB_F_READ (1u << 1)
#define LCB_F_WRITE (1u << 2)
#define LCB_F_RT (1u << 3)
#define LCB_F_PERCPU (1u << 4)
#define LCB_F_MUTEX (1u << 5)

/* From include/uapi/linux/futex.h. */
#define FUTEX_WAIT 0
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAIT_REQUEUE_PI 11
#define FUTEX_LOCK_PI2 13
#define FUTEX_PRIVATE_FLAG 0x80
#define FUTEX_COMMAND 0x7f

/* From include/linux/sched.h: threads that have never been in user mode. */
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000
#define PF_KTHREAD 0x00200000

/* One wait in so many nanoseconds of waiting is looked at, in the mean. */
const volatile __u64 sample_time = 500000;
GADGET_PARAM(sample_time);

/* Whether each lock has rows of its own. */
const volatile bool lock_address = false;
GADGET_PARAM(lock_address);

/* Whether waits in futex count that are for no lock: the operator tells which are. */
const volatile bool all_futex = false;
GADGET_PARAM(all_futex);

/*
 * --kernel-locks: whether ig_kernel_begin and ig_kernel_end are attached, which
 * otel-profiles does: see gadget.yaml.
 */
const volatile char kernel_locks[8] = "auto";
GADGET_PARAM(kernel_locks);

/*
 * The code of the kernel's sleeping locks and, behind it, of the spinning ones. A
 * stack begins there once the frames of the tracing are left out. Where the kernel
 * hides the addresses of its symbols the gadget cannot be loaded; where it has none
 * these are 0, and user space does it.
 */
extern void __sched_text_start __ksym __weak;
extern void __lock_text_end __ksym __weak;

/* The names are what users see. */
enum lock_kind {
	kernel_mutex,
	kernel_rwsem,
	kernel_percpu_rwsem,
	kernel_rtmutex,
	kernel_semaphore,
	kernel_spinlock,
	kernel_rwlock,
	/* FUTEX_LOCK_PI */
	user_pi_mutex,
	/* Those that the operator finds: see gadget.yaml. */
	user_mutex,
	user_rwlock,
	user_once,
	/* Not a lock, or none that is known. */
	user_futex,
};

/* A number as text, which is empty without --lock-address. */
typedef char lock_name[24];

struct lock_key {
	struct profiles_process proc;
	profiles_stack_key user_stack_key;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	enum lock_kind kind_raw;
	/* Keys are compared byte by byte. */
	__u32 __padding;
	lock_name address;
	char lock_file[96]; /* the operator fills it in */
};

struct lock_value {
	gadget_duration delay_raw;
	__u64 contentions;
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
	/* For the operator, and of no use in a row: see not_locks. */
	__u64 address_raw;
	/* Where processes share the lock, with --lock-address. */
	__u64 shared_raw;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* rows_max_entries */
	__type(key, struct lock_key);
	__type(value, struct lock_value);
} rows SEC(".maps");

GADGET_MAPITER(locks, rows);

struct lock_capture {
	struct profiles_capture head;
	struct lock_key key;
	struct lock_value value;
	profiles_stack_copy stack;
};

/*
 * What threads wait for in futex that is no lock, and when the operator has seen that: a
 * condition, a semaphore. Waits for it are not looked at for a while, or the threads without
 * work would be most of the captures. Memory can become a lock later. Addresses given to
 * FUTEX_WAIT are not in here: in glibc, a thread that comes back from a condition waits so
 * for a mutex, and with a stripped one that cannot be told from the condition.
 */
struct place {
	__u64 address;
	__u32 pid;
	__u32 __padding;
};

#define NOT_LOCK_FOR 10000000000ull /* ns */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct place);
	__type(value, __u64);
} not_locks SEC(".maps");

static __always_inline bool is_no_lock(__u64 address)
{
	struct place place = {
		.address = address,
		.pid = bpf_get_current_pid_tgid() >> 32,
	};
	__u64 *seen = bpf_map_lookup_elem(&not_locks, &place);

	return seen && bpf_ktime_get_boot_ns() - *seen < NOT_LOCK_FOR;
}

/* A wait for a lock of the kernel. */
struct kernel_wait {
	__u64 lock;
	__u64 since; /* 0: none */
	__u32 flags;
	__u32 __padding;
};

/*
 * What threads wait for, by their ID. A thread has one entry from its first wait to
 * its end. All of it is allocated at the start: memory cannot be had where the
 * kernel waits for a lock. --threads, see gadget.yaml.
 */
const volatile int threads_max_entries = 65536;
GADGET_PARAM(threads_max_entries);

struct lock_thread {
	/* A wait in the kernel can be within one in futex. */
	struct kernel_wait sleeps;
	__u64 futex_since; /* 0: none */
	__u64 futex_address;
	__u32 futex_command;
	__u32 futex_shared;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* threads_max_entries */
	__type(key, __u32);
	__type(value, struct lock_thread);
} threads SEC(".maps");

/*
 * Per CPU: the spinning waits. A thread that spins stays on its CPU, and what
 * interrupts it can have to wait itself: a soft interrupt, one of a device, one that
 * cannot be masked.
 */
#define SPIN_LEVELS 4

struct lock_cpu {
	struct kernel_wait spins[SPIN_LEVELS];
	__u32 spinning; /* how many of them there are */
	/* A program of ours is at work on this CPU: see begin_work. */
	__u32 busy;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lock_cpu);
} cpus SEC(".maps");

static __always_inline struct lock_cpu *this_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

static __always_inline struct lock_thread *this_thread(void)
{
	static const struct lock_thread none;
	__u32 tid = bpf_get_current_pid_tgid(), zero = 0;
	struct lock_thread *thread = bpf_map_lookup_elem(&threads, &tid);
	struct capture_counts *counts;

	if (thread)
		return thread;
	if (!bpf_map_update_elem(&threads, &tid, &none, BPF_NOEXIST))
		thread = bpf_map_lookup_elem(&threads, &tid);
	if (!thread) {
		counts = bpf_map_lookup_elem(&capture_counts, &zero);
		if (counts)
			counts->full++;
	}
	return thread;
}

/*
 * Begins work that takes a lock of the ring buffer or of a map, or room that is one
 * per CPU. The end of a wait for that very lock, with the lock held, runs a program of
 * ours, too, and so can what interrupts one: that one must leave it be. Returns NULL
 * then.
 */
static __always_inline struct lock_cpu *begin_work(void)
{
	struct lock_cpu *cpu = this_cpu();

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
 * The address of a lock of a program as it is. That of a lock of the kernel would tell
 * where the kernel is in memory: one is mixed with a number that is another one in each
 * run.
 */
static volatile __u64 secret;

static __always_inline void name_lock(lock_name *name, __u64 lock, bool kernel)
{
	__builtin_memset(name, 0, sizeof(*name));
	if (!lock_address || !lock)
		return;
	if (kernel) {
		if (!secret)
			secret = (__u64)bpf_get_prandom_u32() << 32 |
				 bpf_get_prandom_u32() | 1;
		lock = mix(mix(lock, secret), secret);
	}
	(*name)[0] = '0';
	(*name)[1] = 'x';
	for (int i = 0; i < 16; i++) {
		__u8 digit = (lock >> (60 - 4 * i)) & 0xf;

		(*name)[2 + i] = digit < 10 ? '0' + digit : 'a' + digit - 10;
	}
}

/* The registers that the current thread has entered the kernel with. */
static __always_inline void copy_user_stack_here(struct lock_capture *capture)
{
	struct task_struct *task = bpf_get_current_task_btf();

	/* Since Linux 5.15. */
	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return;
	if (task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER))
		return;
	copy_user_stack(&capture->head, capture->stack,
			(struct pt_regs *)bpf_task_pt_regs(task));
}

/*
 * Counts a wait that is over. ctx is NULL for one of user space, and place is its
 * address if it can be in not_locks. shared: processes can share the lock.
 */
static __always_inline void count_wait(void *ctx, enum lock_kind kind,
				       __u64 lock, __u64 place, bool shared,
				       __u64 since)
{
	__u64 delay = bpf_ktime_get_ns() - since, weight, contentions;
	struct profiles_process proc = {};
	struct lock_capture *capture;
	struct row_stacks *stacks;
	struct lock_cpu *cpu;

	count_event();
	if (place && is_no_lock(place))
		return;
	/* A clock that has not moved on in the meantime would draw nothing. */
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
		count_lost(weight);
		return;
	}
	capture = bpf_ringbuf_reserve(&captures, sizeof(*capture), 0);
	if (!capture) {
		count_lost(weight);
		end_work(cpu);
		return;
	}
	begin_capture(&capture->head);
	capture->key.proc = proc;
	capture->key.user_stack_key = 0;
	capture->key.kind_raw = kind;
	capture->key.__padding = 0;
	name_lock(&capture->key.address, lock, ctx);
	capture->value.delay_raw = weight;
	capture->value.contentions = contentions;
	capture->value.address_raw = place;
	capture->value.shared_raw = shared && lock_address ? lock : 0;
	__builtin_memset(capture->key.lock_file, 0,
			 sizeof(capture->key.lock_file));
	put_kernel_stack(ctx ? kernel_stack_id_from(ctx,
						    (__u64)&__sched_text_start,
						    (__u64)&__lock_text_end) :
			       no_kernel_stack_id(),
			 &capture->key.kern_stack_raw,
			 &capture->key.kern_stack_id);
	stacks = row_stacks_here();
	if (ctx && stacks)
		keep_frames(&ig_kstack, &stacks->found_kernel,
			    without_frames(&stacks->kernel, stacks->kernel_skip));
	describe_user_stack(&capture->value.user_stack_raw,
			    &capture->value.user_stack_id);
	copy_user_stack_here(capture);
	submit_capture(capture);
	end_work(cpu);
}

static __always_inline enum lock_kind kernel_kind(__u32 flags)
{
	if (flags & LCB_F_MUTEX)
		return kernel_mutex;
	if (flags & LCB_F_PERCPU)
		return kernel_percpu_rwsem;
	/* Of a kernel with PREEMPT_RT, spinlocks and mutexes are such, too. */
	if (flags & LCB_F_RT)
		return kernel_rtmutex;
	if (flags & LCB_F_SPIN)
		return flags & (LCB_F_READ | LCB_F_WRITE) ? kernel_rwlock :
							    kernel_spinlock;
	if (flags & (LCB_F_READ | LCB_F_WRITE))
		return kernel_rwsem;
	return kernel_semaphore;
}

/* A mutex is spun for by a thread that may be put to sleep in the same wait. */
static __always_inline bool spins(__u32 flags)
{
	return (flags & (LCB_F_SPIN | LCB_F_MUTEX)) == LCB_F_SPIN;
}

static __always_inline void begin_spin(__u64 lock, __u32 flags)
{
	struct lock_cpu *cpu = this_cpu();
	__u32 level;

	if (!cpu)
		return;
	/* All levels are in use if ends were missed. */
	level = cpu->spinning;
	if (level >= SPIN_LEVELS)
		level = 0;
	cpu->spinning = level + 1;
	barrier();
	cpu->spins[level].lock = lock;
	cpu->spins[level].flags = flags;
	cpu->spins[level].since = bpf_ktime_get_ns();
}

/* Takes the innermost wait for a lock off this CPU. */
static __always_inline bool end_spin(__u64 lock, struct kernel_wait *wait)
{
	struct lock_cpu *cpu = this_cpu();

	if (!cpu || !cpu->spinning)
		return false;
	for (int i = SPIN_LEVELS - 1; i >= 0; i--) {
		if (i >= cpu->spinning || cpu->spins[i].lock != lock)
			continue;
		*wait = cpu->spins[i];
		cpu->spins[i].since = 0;
		cpu->spinning = i;
		return wait->since;
	}
	return false;
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
	/* A mutex begins anew at each change between spinning and sleep. */
	if (thread->sleeps.since && thread->sleeps.lock == lock)
		return 0;
	/* FUTEX_LOCK_PI waits by a mutex of the kernel, and counts itself. */
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
	count_wait(ctx, kernel_kind(wait.flags), lock, 0, false, wait.since);
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
	count_wait(NULL, kind, thread->futex_address, place,
		   thread->futex_shared, since);
	return 0;
}

/* Not sched_process_exit: a thread that exits waits for locks after that. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(ig_thread_free, struct task_struct *task)
{
	__u32 tid = task->pid;

	bpf_map_delete_elem(&threads, &tid);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
