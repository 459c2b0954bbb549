// SPDX-License-Identifier: GPL-2.0
/*
 * profile_pagefault: which code touches memory that is not there yet.
 *
 * Each page fault of a program is one event: those in its own code, and those
 * of the kernel as it copies to or from the program's memory.
 */
#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <gadget/types.h>
#include <gadget/macros.h>
#include <gadget/buffer.h>

#include "../include/process.h"
#include "../include/stack_maps.h"

/* Room for some 20,000 events, as much as a busy process faults in a second. */
#define BUFFER_SIZE (4 * 1024 * 1024)

/* What the thread wanted with the page. */
enum page_fault_access {
	read,
	write,
	execute,
};

struct page_fault {
	gadget_timestamp timestamp_raw;
	struct process proc;
	gadget_tid tid;
	enum page_fault_access access_raw;
	__u64 address;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

GADGET_TRACER_MAP(events, BUFFER_SIZE);
GADGET_TRACER(pagefaults, events, page_fault);

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

static __always_inline void send(void *ctx, unsigned long address,
				 unsigned long code, __u64 kernel_ip)
{
	struct page_fault *event;
	struct process proc = {};

	fill_process(&proc);
	if (unwanted(&proc))
		return;
	event = gadget_reserve_buf(&events, sizeof(*event));
	if (!event)
		return;
	event->timestamp_raw = bpf_ktime_get_boot_ns();
	event->proc = proc;
	event->tid = bpf_get_current_pid_tgid();
	event->access_raw = access_of(code);
	event->address = address;
	/*
	 * Of a fault in user mode the kernel's stack says nothing. Otherwise it
	 * begins with the instruction that faulted.
	 */
	put_kernel_stack(kernel_ip ? kernel_stack_id_from(ctx, kernel_ip,
							  kernel_ip + 1) :
				     no_stack_id(&ig_kstack),
			 &event->kern_stack_raw, &event->kern_stack_id);
	put_user_stack(ctx, &event->user_stack_raw, &event->user_stack_id);
	gadget_submit_buf(ctx, &events, event, sizeof(*event));
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(ig_fault_user, unsigned long address, struct pt_regs *regs,
	     unsigned long code)
{
	send(ctx, address, code, 0);
	return 0;
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(ig_fault_kern, unsigned long address, struct pt_regs *regs,
	     unsigned long code)
{
	struct task_struct *task = bpf_get_current_task_btf();

	/*
	 * With faults disabled none is resolved: someone tries whether the
	 * memory is there. That may be the walk of a user stack for an event, so
	 * this also keeps the programs from running within each other.
	 */
	if (task->pagefault_disabled)
		return 0;
	/* The kernel's own memory. */
	if (!task->mm || (__s64)address < 0)
		return 0;
	send(ctx, address, code, PT_REGS_IP_CORE(regs));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
