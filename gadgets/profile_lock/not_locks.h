/* SPDX-License-Identifier: GPL-2.0 */
/* Addresses in futex that are not locks. */
#ifndef PROFILE_LOCK_NOT_LOCKS_H
#define PROFILE_LOCK_NOT_LOCKS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

/*
 * Addresses of conditions and semaphores, with the time when the operator found them. The gadget
 * ignores waits there, because most captures would be of idle threads. It does so only for a while,
 * because the memory can become a lock later. Addresses of FUTEX_WAIT are excluded. In glibc, a
 * thread uses it to wait for a mutex when it returns from a condition. In a stripped glibc, that
 * looks like the condition.
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

#endif /* PROFILE_LOCK_NOT_LOCKS_H */
