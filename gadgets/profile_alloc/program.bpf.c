// SPDX-License-Identifier: GPL-2.0
/*
 * profile_alloc: which code allocates memory, and with --live which memory is in use.
 *
 * The operator allocator attaches the programs to the functions of the allocator
 * of the processes that the run is about: see gadget.yaml. An allocation is drawn
 * by its bytes (draw in capture.h). Of one that is drawn, the stack is copied, and
 * the operator captures makes a row of it.
 *
 * With --live, what was drawn is in the map live until it is freed.
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
#include "../include/capture.h"

/* What a call puts onto the stack. */
#if defined(__TARGET_ARCH_x86)
#define RETURN_ADDRESS 8
#else
#define RETURN_ADDRESS 0
#endif

/* One allocation in so many bytes is looked at, in the mean. */
const volatile __u64 sample_bytes = 512 * 1024;
GADGET_PARAM(sample_bytes);

const volatile bool live = false;
GADGET_PARAM(live);

/* How long the probes were there: the names are what users see. */
enum alloc_attached {
	always,
	/* For stretches of time, and the row stands for all of it: see stretch in capture.h. */
	stretches,
};

struct alloc_key {
	struct profiles_process proc;
	profiles_stack_key user_stack_key;
	enum alloc_attached attached_raw;
	/* Keys are compared byte by byte. */
	__u32 __padding;
};

struct alloc_value {
	__u64 bytes;
	__u64 calls;
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

/* Stays empty: the operator captures adds the rows when it is read. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct alloc_key);
	__type(value, struct alloc_value);
} rows SEC(".maps");

GADGET_MAPITER(allocations, rows);

/* The same for --live. */
struct in_use_key {
	struct profiles_process proc;
	profiles_stack_key user_stack_key;
	enum alloc_attached attached_raw;
	__u32 __padding;
};

struct in_use_value {
	__u64 bytes;
	__u64 calls;
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct in_use_key);
	__type(value, struct in_use_value);
} in_use_rows SEC(".maps");

GADGET_MAPITER(in_use, in_use_rows);

struct alloc_capture {
	struct profiles_capture head;
	struct alloc_key key;
	struct alloc_value value;
	profiles_stack_copy stack;
};

/*
 * What was drawn and is not freed yet: by process and address, with the ID of its
 * capture and what it stands for. User space reads it from time to time. With live
 * only.
 */
struct allocation {
	__u64 address;
	__u32 pid;
	__u32 __padding;
};

struct allocated {
	__u64 id;
	__u64 bytes;
	__u64 calls;
};

/* --live-entries, see gadget.yaml. */
const volatile int live_allocations_max_entries = 65536;
GADGET_PARAM(live_allocations_max_entries);

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 0); /* live_allocations_max_entries */
	__type(key, struct allocation);
	__type(value, struct allocated);
} live_allocations SEC(".maps");

/*
 * What was drawn and whose address is not known yet, by the thread and where its
 * stack is once the function returns: one function of an allocator can call another. A
 * thread that ends within an allocation leaves its entry behind: others drop it.
 */
struct call {
	__u64 stack;
	__u32 tid;
	__u32 __padding;
};

struct underway {
	struct allocated allocated;
	/* Where posix_memalign puts the address, 0: it is returned. */
	__u64 result;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct call);
	__type(value, struct underway);
} underway SEC(".maps");

static __always_inline void count_full(void)
{
	__u32 zero = 0;
	struct capture_counts *counts =
		bpf_map_lookup_elem(&capture_counts, &zero);

	if (counts)
		counts->full++;
}

/* Calls that have met a probe, by their program's place in allocator_programs: the operator reads them. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 9);
	__type(key, __u32);
	__type(value, __u64);
} allocator_calls SEC(".maps");

static __always_inline void count_call(__u32 program)
{
	__u64 *calls = bpf_map_lookup_elem(&allocator_calls, &program);

	if (calls)
		(*calls)++;
}

static __always_inline void allocate(struct pt_regs *ctx, __u64 size,
				     __u64 result)
{
	struct profiles_process proc = {};
	struct underway of = { .result = result };
	struct alloc_capture *capture;
	struct call call = {
		.stack = PT_REGS_SP(ctx) + RETURN_ADDRESS,
		.tid = bpf_get_current_pid_tgid(),
	};
	__u64 weight, calls;

	count_event();
	/* More than a process can have: it fails. */
	if (size >> 47)
		return;
	/* One of no bytes is an allocation, too. */
	weight = draw(size ?: 1, sample_bytes);
	if (!weight)
		return;
	fill_process(&proc);
	if (unwanted(&proc))
		return;
	calls = drawn_events(size, weight);
	if (!size)
		weight = 0;
	capture = bpf_ringbuf_reserve(&captures, sizeof(*capture), 0);
	if (!capture) {
		count_lost(weight);
		return;
	}
	begin_capture(&capture->head);
	capture->key.proc = proc;
	capture->key.user_stack_key = 0;
	capture->key.attached_raw = always;
	capture->key.__padding = 0;
	capture->value.bytes = weight;
	capture->value.calls = calls;
	describe_user_stack(&capture->value.user_stack_raw,
			    &capture->value.user_stack_id);
	copy_user_stack(&capture->head, capture->stack, ctx);
	capture->head.known |= CAPTURE_ENTRY;
	of.allocated.id = capture->head.id;
	of.allocated.bytes = weight;
	of.allocated.calls = calls;
	submit_capture(capture);
	if (live)
		bpf_map_update_elem(&underway, &call, &of, BPF_ANY);
}

static __always_inline void release(__u64 address)
{
	struct allocation gone = {
		.address = address,
		.pid = bpf_get_current_pid_tgid() >> 32,
	};

	if (address)
		bpf_map_delete_elem(&live_allocations, &gone);
}

/* malloc(size), valloc(size), pvalloc(size), operator new(size, ...) */
SEC("uprobe/allocator:size_first")
int ig_size_first(struct pt_regs *ctx)
{
	count_call(0);
	allocate(ctx, PT_REGS_PARM1(ctx), 0);
	return 0;
}

/* aligned_alloc(alignment, size), memalign(alignment, size) */
SEC("uprobe/allocator:size_second")
int ig_size_second(struct pt_regs *ctx)
{
	count_call(1);
	allocate(ctx, PT_REGS_PARM2(ctx), 0);
	return 0;
}

/* posix_memalign(result, alignment, size) */
SEC("uprobe/allocator:size_third")
int ig_size_third(struct pt_regs *ctx)
{
	count_call(2);
	allocate(ctx, PT_REGS_PARM3(ctx), PT_REGS_PARM1(ctx));
	return 0;
}

/* calloc(count, size) */
SEC("uprobe/allocator:count_size")
int ig_count_size(struct pt_regs *ctx)
{
	__u64 count = PT_REGS_PARM1(ctx), size = PT_REGS_PARM2(ctx);

	count_call(3);
	/* A product that does not fit fails. */
	if (count > 1 && size > 1 && (count | size) >> 32)
		return 0;
	allocate(ctx, count * size, 0);
	return 0;
}

/* realloc(address, size) */
SEC("uprobe/allocator:address_size")
int ig_address_size(struct pt_regs *ctx)
{
	count_call(4);
	if (live)
		release(PT_REGS_PARM1(ctx));
	if (PT_REGS_PARM2(ctx) || !PT_REGS_PARM1(ctx))
		allocate(ctx, PT_REGS_PARM2(ctx), 0);
	else
		count_event();
	return 0;
}

/* free(address), operator delete(address, ...) */
SEC("uprobe/allocator:address")
int ig_address(struct pt_regs *ctx)
{
	count_call(5);
	count_event();
	release(PT_REGS_PARM1(ctx));
	return 0;
}

static __always_inline void keep(struct pt_regs *ctx, __u64 stack)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid(), result = PT_REGS_RC(ctx);
	struct allocation key = { .pid = pid_tgid >> 32 };
	struct call call = { .stack = stack, .tid = pid_tgid };
	struct underway *of;

	count_event();
	of = bpf_map_lookup_elem(&underway, &call);
	if (!of)
		return;
	if (!of->result)
		key.address = result;
	else if (result || bpf_probe_read_user(&key.address,
					       sizeof(key.address),
					       (void *)of->result))
		key.address = 0;
	if (key.address && bpf_map_update_elem(&live_allocations, &key,
					       &of->allocated, BPF_ANY))
		count_full();
	bpf_map_delete_elem(&underway, &call);
}

/* At the return of what allocates. */
SEC("uretprobe/allocator:returned")
int ig_returned(struct pt_regs *ctx)
{
	count_call(6);
	keep(ctx, PT_REGS_SP(ctx));
	return 0;
}

/* At an instruction that returns, also of a function that has not been called to allocate. */
SEC("uprobe/allocator:returning")
int ig_returning(struct pt_regs *ctx)
{
	count_call(7);
	keep(ctx, PT_REGS_SP(ctx) + RETURN_ADDRESS);
	return 0;
}

/*
 * Costs what a call that is not drawn does: the operator measures it. Its step is the
 * largest one, so that next to nothing is drawn.
 */
SEC("uprobe/allocator:nothing")
int ig_nothing(struct pt_regs *ctx)
{
	count_call(8);
	count_event();
	(void)draw(1, 0xffffffff);
	return 0;
}

/* The operator attaches these to processes, by their place. The names are those of its metadata. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 9);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} allocator_programs SEC(".maps") = {
	.values = {
		[0] = (void *)&ig_size_first,
		[1] = (void *)&ig_size_second,
		[2] = (void *)&ig_size_third,
		[3] = (void *)&ig_count_size,
		[4] = (void *)&ig_address_size,
		[5] = (void *)&ig_address,
		[6] = (void *)&ig_returned,
		[7] = (void *)&ig_returning,
		[8] = (void *)&ig_nothing,
	},
};

/* Processes that the operator has to look at: they are new, run another program now, or go on without their first thread. */
struct newcomer {
	__u32 pid;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} newcomers SEC(".maps");

/*
 * When a process began to run another program last: what it had allocated before is
 * gone, and nobody has freed it. With live only.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} live_execs SEC(".maps");

static __always_inline bool tell(struct task_struct *task)
{
	struct profiles_process proc = {};
	struct newcomer *newcomer;

	fill_process_from(task, &proc);
	if (unwanted(&proc))
		return false;
	newcomer = bpf_ringbuf_reserve(&newcomers, sizeof(*newcomer), 0);
	if (newcomer) {
		newcomer->pid = proc.pid;
		bpf_ringbuf_submit(newcomer, 0);
	}
	return true;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(ig_exec, struct task_struct *task)
{
	__u64 now = bpf_ktime_get_boot_ns();
	__u32 pid = task->tgid;

	if (tell(task) && live)
		bpf_map_update_elem(&live_execs, &pid, &now, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(ig_fork, struct task_struct *parent, struct task_struct *child)
{
	if (child->tgid != parent->tgid)
		tell(child);
	return 0;
}

/*
 * A probe belongs to a thread, the first one of a process, and does nothing once that has ended:
 * then it has to be another one. When this is called, mm is gone on some kernels and not on others.
 */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(ig_exit, struct task_struct *task)
{
	if (task->signal->live.counter <= 0)
		return 0;
	if (task->pid == task->tgid || !task->group_leader->mm)
		tell(task);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
