// SPDX-License-Identifier: GPL-2.0
/*
 * profile_pagefault shows which code touches memory that is not present yet.
 *
 * It counts page faults in programs' own code, and in the kernel when it copies from or to their
 * memory. User space reads and clears the counts every --map-fetch-interval. With --single-events
 * each fault is an event of its own instead, with its time and address.
 *
 * The programs are raw_tp, not tp_btf, because only raw_tp programs can call the unwinder.
 */
#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <gadget/types.h>
#include <gadget/macros.h>
#include <gadget/buffer.h>

/*
 * These values equal the defaults in gadget.yaml. New rows arrive while user space reads the rows of
 * one second. So with frame pointers, the stack map must have room for more than two stacks per row.
 */
#define ROWS 30720
#define USER_STACKS 65536
#define UNWIND_FROM_RAW_TP

#include "../include/draw.h"
#include "../include/process.h"
#include "../include/stack_maps.h"
#include "../include/unwind.h"

/* --single-events, see gadget.yaml. */
const volatile bool single_events = false;
GADGET_PARAM(single_events);

/* Room for about 20,000 events, the faults of a busy process in a second. */
#define BUFFER_SIZE (4 * 1024 * 1024)

/* The access to the page. */
enum page_fault_access {
	read,
	write,
	execute,
};

/* The identity of a row. */
struct row_key {
	struct profiles_process proc;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	profiles_stack_key user_stack_key;
	enum page_fault_access access_raw;
	/* Keys are compared byte by byte. */
	__u32 __padding;
	profiles_stack unwound_id;
};

struct row_value {
	__u64 faults;
	/* From the row's first fault. */
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

static __always_inline void add_counts(struct row_value *row,
				       const struct drawn *event)
{
	__sync_fetch_and_add(&row->faults, event->events);
}

#include "../include/stack_rows.h"

GADGET_MAPITER(pagefaults, rows);

struct page_fault {
	gadget_timestamp timestamp_raw;
	struct profiles_process proc;
	gadget_tid tid;
	enum page_fault_access access_raw;
	__u64 address;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

GADGET_TRACER_MAP(events, BUFFER_SIZE);
GADGET_TRACER(pagefault_events, events, page_fault);

static __always_inline enum page_fault_access access_of(unsigned long code)
{
#if defined(__TARGET_ARCH_x86)
	/* enum x86_pf_error_code in arch/x86/include/asm/trap_pf.h. */
	if (code & 1 << 4)
		return execute;
	return code & 1 << 1 ? write : read;
#elif defined(__TARGET_ARCH_arm64)
	/* The exception syndrome, arch/arm64/include/asm/esr.h. */
	if (code >> 26 == 0x20)
		return execute;
	return code & 1 << 6 ? write : read;
#else
#error "unknown architecture"
#endif
}

/*
 * For a fault in user mode, the kernel's stack has no information. Otherwise it begins with the
 * faulting instruction.
 */
static __always_inline __u32 stack_from(void *ctx, __u64 kernel_ip)
{
	return kernel_ip ? kernel_stack_id_from(ctx, kernel_ip, kernel_ip + 1) :
			   no_kernel_stack_id();
}

static __always_inline void send(void *ctx, unsigned long address,
				 unsigned long code, __u64 kernel_ip,
				 const struct profiles_process *proc)
{
	struct page_fault *event = gadget_reserve_buf(&events, sizeof(*event));

	if (!event)
		return;
	event->timestamp_raw = bpf_ktime_get_boot_ns();
	event->proc = *proc;
	event->tid = bpf_get_current_pid_tgid();
	event->access_raw = access_of(code);
	event->address = address;
	put_kernel_stack(stack_from(ctx, kernel_ip), &event->kern_stack_raw,
			 &event->kern_stack_id);
	put_user_stack(ctx, &event->user_stack_raw, &event->user_stack_id);
	keep_stacks();
	gadget_submit_buf(ctx, &events, event, sizeof(*event));
}

static __always_inline void count(void *ctx, unsigned long code,
				  __u64 kernel_ip, const struct profiles_process *proc)
{
	struct drawn drawn = { .value = 1, .events = 1 };
	struct scratch_row *scratch = scratch_rows_here();

	if (!scratch)
		return;
	scratch->key.proc = *proc;
	scratch->key.access_raw = access_of(code);
	scratch->key.unwound_id = 0;
	if (unwind_on) {
		drawn = draw(1, bpf_ktime_get_ns(), unwind_step, unwind_budget);
		if (!drawn.value ||
		    unwind_row(ctx, UNWIND_RAW_TP, scratch, &drawn))
			return;
	}
	if (drawn.over_budget)
		put_no_stacks(scratch);
	else
		put_stacks(ctx, scratch, stack_from(ctx, kernel_ip));
	if (!add_event(scratch, &drawn))
		return;
	keep_stacks();
	add_all_homeless(scratch);
}

static __always_inline void fault(void *ctx, unsigned long address,
				  unsigned long code, __u64 kernel_ip)
{
	struct profiles_process proc = {};

	fill_process(&proc);
	if (unwanted(&proc))
		return;
	if (single_events)
		send(ctx, address, code, kernel_ip, &proc);
	else
		count(ctx, code, kernel_ip, &proc);
}

/* The arguments are the address, the registers and the error code. */
SEC("raw_tp/page_fault_user")
int ig_fault_user(struct bpf_raw_tracepoint_args *ctx)
{
	fault(ctx, ctx->args[0], ctx->args[2], 0);
	return 0;
}

SEC("raw_tp/page_fault_kernel")
int ig_fault_kern(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)ctx->args[1];

	/*
	 * With page faults disabled, the kernel only checks whether the memory is present, for example
	 * while it walks a user stack for an event. So this check also prevents nested programs.
	 */
	if (task->pagefault_disabled)
		return 0;
	/* This is the kernel's own memory. */
	if (!task->mm || (__s64)ctx->args[0] < 0)
		return 0;
	fault(ctx, ctx->args[0], ctx->args[2], PT_REGS_IP_CORE(regs));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
