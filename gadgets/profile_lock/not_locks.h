/* SPDX-License-Identifier: GPL-2.0 */
/* Addresses in futex that are not locks. */
#ifndef PROFILE_LOCK_NOT_LOCKS_H
#define PROFILE_LOCK_NOT_LOCKS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

/*
 * When the operator found that an address is a condition or a semaphore, not a lock. The gadget
 * ignores waits there for a while, because otherwise most captures would be of idle threads. Memory
 * can become a lock later. Addresses given to FUTEX_WAIT are not in here:
 * in glibc, a thread that returns from a condition waits so for a mutex, and with a stripped glibc
 * that looks like the condition.
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
