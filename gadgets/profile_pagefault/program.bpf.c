// SPDX-License-Identifier: GPL-2.0
/*
 * profile_pagefault: which code touches memory that is not there yet.
 *
 * Counted are the page faults of programs: those in their own code, and those
 * of the kernel as it copies to or from a program's memory. User space reads and
 * clears the counts every --map-fetch-interval. With --single-events each fault
 * is an event of its own instead, with its time and address.
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
 * As in gadget.yaml. While user space reads the rows of one second, those of the
 * next come: there have to be more than two stacks for each.
 */
#define ROWS 24576
#define USER_STACKS 65536

#include "../include/process.h"
#include "../include/rows.h"
#include "../include/stack_maps.h"

/* --single-events, see gadget.yaml. */
const volatile bool single_events = false;
GADGET_PARAM(single_events);

/* Room for some 20,000 events, as much as a busy process faults in a second. */
#define BUFFER_SIZE (4 * 1024 * 1024)

/* What the thread wanted with the page. */
enum page_fault_access {
	read,
	write,
	execute,
};

/* What makes a row. */
struct fault_key {
	struct profiles_process proc;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	profiles_stack_key user_stack_key;
	enum page_fault_access access_raw;
	/* Keys are compared byte by byte. */
	__u32 __padding;
};

struct fault_value {
	__u64 faults;
	/* As found by the row's first fault. */
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 0); /* rows_max_entries */
	__type(key, struct fault_key);
	__type(value, struct fault_value);
} rows SEC(".maps");

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

/* Per CPU: room for a row on its way in, and faults that found none. */
struct scratch_row {
	struct fault_key key;
	struct fault_value value;
	__u64 homeless;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch_row);
} scratch_rows SEC(".maps");

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
 * Of a fault in user mode the kernel's stack says nothing. Otherwise it begins
 * with the instruction that faulted.
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

/*
 * Faults for which the map had no room go into a row without process and stack
 * as soon as there is some, so that the sum of all rows stays right.
 */
static __always_inline void add_homeless(struct scratch_row *scratch)
{
	struct fault_value *row;

	__builtin_memset(&scratch->key, 0, sizeof(scratch->key));
	__builtin_memset(&scratch->value, 0, sizeof(scratch->value));
	name_row(&scratch->key.proc, "[rows full]");
	row = row_of(&rows, &scratch->key, &scratch->value);
	if (row) {
		__sync_fetch_and_add(&row->faults, scratch->homeless);
		scratch->homeless = 0;
	}
}

static __always_inline void count(void *ctx, unsigned long code,
				  __u64 kernel_ip, const struct profiles_process *proc)
{
	struct scratch_row *scratch;
	struct fault_value *row;
	__u32 zero = 0;

	scratch = bpf_map_lookup_elem(&scratch_rows, &zero);
	if (!scratch)
		return;
	scratch->key.proc = *proc;
	scratch->key.access_raw = access_of(code);
	scratch->value.faults = 0;
	scratch->key.user_stack_key =
		put_user_stack(ctx, &scratch->value.user_stack_raw,
			       &scratch->value.user_stack_id);
	put_kernel_stack(stack_from(ctx, kernel_ip),
			 &scratch->key.kern_stack_raw,
			 &scratch->key.kern_stack_id);
	row = row_of(&rows, &scratch->key, &scratch->value);
	if (!row) {
		scratch->homeless++;
		return;
	}
	__sync_fetch_and_add(&row->faults, 1);
	keep_stacks();
	if (scratch->homeless)
		add_homeless(scratch);
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

SEC("tp_btf/page_fault_user")
int BPF_PROG(ig_fault_user, unsigned long address, struct pt_regs *regs,
	     unsigned long code)
{
	fault(ctx, address, code, 0);
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
	fault(ctx, address, code, PT_REGS_IP_CORE(regs));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
