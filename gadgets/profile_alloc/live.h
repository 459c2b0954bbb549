/* SPDX-License-Identifier: GPL-2.0 */
/* With --live: allocations in use. */
#ifndef PROFILE_ALLOC_LIVE_H
#define PROFILE_ALLOC_LIVE_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <gadget/macros.h>

#include "../include/capture.h"

const volatile bool live = false;
GADGET_PARAM(live);

/*
 * Sampled allocations that are not freed yet, by process and address, with the ID of their capture
 * and their weight. User space reads it from time to time. Only used with live.
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
 * A sampled allocation has no address until its function returns. Until then, its key is the thread
 * and the stack pointer at the return. The thread alone is not enough, because one function of an
 * allocator can call another. If a thread ends within an allocation, its entry stays until newer
 * ones replace it.
 */
struct call {
	__u64 stack;
	__u32 tid;
	__u32 __padding;
};

struct underway {
	struct allocated allocated;
	/* Where posix_memalign stores the address; 0: the function returns it. */
	__u64 result;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct call);
	__type(value, struct underway);
} underway SEC(".maps");

static __always_inline void release(__u64 address)
{
	struct allocation gone = {
		.address = address,
		.pid = bpf_get_current_pid_tgid() >> 32,
	};

	if (address)
		bpf_map_delete_elem(&live_allocations, &gone);
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

/*
 * The time of a process's last execve. Earlier allocations no longer exist, although nobody has
 * freed them. Only used with live.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} live_execs SEC(".maps");

#endif /* PROFILE_ALLOC_LIVE_H */
