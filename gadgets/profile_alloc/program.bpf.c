// SPDX-License-Identifier: GPL-2.0
/*
 * profile_alloc shows which code allocates memory and, with --live, which memory is in use.
 *
 * The operator allocator attaches the programs to the allocator functions of the run's processes:
 * see gadget.yaml. Allocations are sampled by their bytes (draw in capture.h). The stack of a sampled
 * allocation is unwound, and the operator captures turns the allocation into a row.
 *
 * With --live, a sampled allocation is in the map live_allocations until it is freed.
 */
#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#define UNWIND_FROM_KPROBE

#include "../include/process.h"
#include "../include/stack_maps.h"
#include "../include/capture.h"
#include "live.h"
#include "newcomers.h"
#include "row.h"

/* The size of a call's return address on the stack. */
#if defined(__TARGET_ARCH_x86)
#define RETURN_ADDRESS 8
#else
#define RETURN_ADDRESS 0
#endif

/* One allocation in this number of bytes is sampled, on average. */
const volatile __u64 sample_bytes = 512 * 1024;
GADGET_PARAM(sample_bytes);

/* Counts from which the operator computes the cost of the probes. */
struct allocator_counts {
	/* Calls with a probe, by their program's index in allocator_programs. */
	__u64 calls[9];
	/* Nanoseconds for sampled calls, in addition to the cost of each call. */
	__u64 drawn;
};

/* All processes share index 0, and each process has its slot. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 257);
	__type(key, __u32);
	__type(value, struct allocator_counts);
} allocator_counts SEC(".maps");

/* The processes with probes, by PID. The operator fills it. */
struct allocator_process {
	__u32 slot;
	/* SETTINGS_ALWAYS if its probes are permanent. */
	__u32 settings;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct allocator_process);
} allocator_processes SEC(".maps");

static __always_inline struct allocator_process this_process(void)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct allocator_process *known =
		bpf_map_lookup_elem(&allocator_processes, &pid);
	struct allocator_process none = {};

	return known ? *known : none;
}

static __always_inline void count_call_at(__u32 slot, __u32 program)
{
	struct allocator_counts *counts =
		bpf_map_lookup_elem(&allocator_counts, &slot);

	if (counts)
		counts->calls[program]++;
}

static __always_inline struct allocator_process count_call(__u32 program)
{
	struct allocator_process process = this_process();

	count_call_at(0, program);
	if (process.slot)
		count_call_at(process.slot, program);
	return process;
}

/* If a thread loses its CPU while its stack is collected, that time is not the gadget's cost. */
#define MOST_DRAWN 100000

static __always_inline void count_drawn_at(__u32 slot, __u64 took)
{
	struct allocator_counts *counts =
		bpf_map_lookup_elem(&allocator_counts, &slot);

	if (counts)
		counts->drawn += took < MOST_DRAWN ? took : MOST_DRAWN;
}

static __always_inline void count_drawn(__u32 slot, __u64 begin)
{
	__u64 took = bpf_ktime_get_ns() - begin;

	count_drawn_at(0, took);
	if (slot)
		count_drawn_at(slot, took);
}

/* A process cannot have more memory, so larger requests fail. */
#define MOST_BYTES (1ull << 47)

/* Sends a sampled allocation to the operator captures. */
static __always_inline void capture_drawn(struct pt_regs *ctx, __u32 settings,
					  __u64 size, __u64 result,
					  __u64 weight)
{
	struct profiles_process proc = {};
	struct underway of = { .result = result };
	struct alloc_capture *capture;
	struct call call = {
		.stack = PT_REGS_SP(ctx) + RETURN_ADDRESS,
		.tid = bpf_get_current_pid_tgid(),
	};
	__u64 calls, stack_id;

	fill_process(&proc);
	if (unwanted(&proc))
		return;
	calls = drawn_events(size, weight);
	if (!size)
		weight = 0;
	/* The kernel's frames would only show the probe. */
	stack_id = unwind_capture(ctx, UNWIND_KPROBE,
				  UNWIND_AT_ENTRY | UNWIND_NO_KERNEL, weight);
	capture = bpf_ringbuf_reserve(&unwound, sizeof(*capture), 0);
	if (!capture) {
		count_lost(weight, calls);
		return;
	}
	begin_capture_by(settings, &capture->head, stack_id);
	capture->key.proc = proc;
	capture->key.attached_raw = always;
	capture->key.__padding = 0;
	capture->value.bytes = weight;
	capture->value.calls = calls;
	put_capture_stack(ctx, UNWIND_AT_ENTRY, capture);
	of.allocated.id = capture->head.id;
	of.allocated.bytes = weight;
	of.allocated.calls = calls;
	submit_unwound(capture);
	if (live)
		bpf_map_update_elem(&underway, &call, &of, BPF_ANY);
}

static __always_inline void allocate(struct pt_regs *ctx,
				     struct allocator_process process,
				     __u64 size, __u64 result)
{
	__u64 weight, begin;

	count_event();
	if (size > MOST_BYTES)
		return;
	/* An allocation of zero bytes counts, too. */
	weight = draw_by(process.settings, size ?: 1, sample_bytes);
	if (!weight)
		return;
	begin = bpf_ktime_get_ns();
	capture_drawn(ctx, process.settings, size, result, weight);
	count_drawn(process.slot, begin);
}

/* malloc(size), valloc(size), pvalloc(size), operator new(size, ...) */
SEC("uprobe/allocator:size_first")
int ig_size_first(struct pt_regs *ctx)
{
	allocate(ctx, count_call(0), PT_REGS_PARM1(ctx), 0);
	return 0;
}

/* aligned_alloc(alignment, size), memalign(alignment, size) */
SEC("uprobe/allocator:size_second")
int ig_size_second(struct pt_regs *ctx)
{
	allocate(ctx, count_call(1), PT_REGS_PARM2(ctx), 0);
	return 0;
}

/* posix_memalign(result, alignment, size) */
SEC("uprobe/allocator:size_third")
int ig_size_third(struct pt_regs *ctx)
{
	allocate(ctx, count_call(2), PT_REGS_PARM3(ctx), PT_REGS_PARM1(ctx));
	return 0;
}

/* calloc(count, size) */
SEC("uprobe/allocator:count_size")
int ig_count_size(struct pt_regs *ctx)
{
	__u64 count = PT_REGS_PARM1(ctx), size = PT_REGS_PARM2(ctx);
	struct allocator_process process = count_call(3);

	/* A product that overflows fails. */
	if ((count | size) >> 32 && size && count > MOST_BYTES / size)
		return 0;
	allocate(ctx, process, count * size, 0);
	return 0;
}

/* realloc(address, size) */
SEC("uprobe/allocator:address_size")
int ig_address_size(struct pt_regs *ctx)
{
	struct allocator_process process = count_call(4);

	if (live)
		release(PT_REGS_PARM1(ctx));
	if (PT_REGS_PARM2(ctx) || !PT_REGS_PARM1(ctx))
		allocate(ctx, process, PT_REGS_PARM2(ctx), 0);
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

/* At the return of an allocating function. */
SEC("uretprobe/allocator:returned")
int ig_returned(struct pt_regs *ctx)
{
	count_call(6);
	keep(ctx, PT_REGS_SP(ctx));
	return 0;
}

/* At a return instruction, possibly of a function that did not allocate. */
SEC("uprobe/allocator:returning")
int ig_returning(struct pt_regs *ctx)
{
	count_call(7);
	keep(ctx, PT_REGS_SP(ctx) + RETURN_ADDRESS);
	return 0;
}

/*
 * Costs as much as a call that is not sampled. The operator measures this cost. With the largest
 * step, almost nothing is sampled.
 */
SEC("uprobe/allocator:nothing")
int ig_nothing(struct pt_regs *ctx)
{
	count_call(8);
	count_event();
	(void)draw(1, 0xffffffff);
	return 0;
}

/*
 * The operator attaches these to processes, by their index. The names are in its metadata.
 */
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
 * A probe belongs to the first thread of a process, and does nothing after that thread's end. Then
 * the operator must attach it to another thread. At this call, some kernels have already cleared
 * mm.
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
