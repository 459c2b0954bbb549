/* SPDX-License-Identifier: GPL-2.0 */
/* Current waits: by thread or, for spinning, by CPU. */
#ifndef PROFILE_LOCK_WAITS_H
#define PROFILE_LOCK_WAITS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/macros.h>

#include "../include/capture.h"
#include "../include/per_cpu.h"

/* A wait for a lock of the kernel. */
struct kernel_wait {
	__u64 lock;
	__u64 since; /* 0: none */
	__u32 flags;
	__u32 __padding;
};

/*
 * The waits of threads, by thread ID. A thread has one entry from its first wait to its end. All
 * memory is allocated at the start, because a program cannot allocate while the kernel waits for a
 * lock. --threads, see gadget.yaml.
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
 * Per CPU: the spinning waits. A thread that spins stays on its CPU. The interrupts of a spinning
 * thread can wait, too: soft, hard and non-maskable ones.
 */
#define SPIN_LEVELS 4

struct lock_cpu {
	struct kernel_wait spins[SPIN_LEVELS];
	__u32 spinning; /* their number */
	/* Not 0 while one of these programs runs on this CPU: see begin_work. */
	__u32 busy;
};

PER_CPU(struct lock_cpu, cpus)

static __always_inline struct lock_thread *this_thread(void)
{
	static const struct lock_thread none;
	__u32 tid = bpf_get_current_pid_tgid();
	struct lock_thread *thread = bpf_map_lookup_elem(&threads, &tid);

	if (thread)
		return thread;
	if (!bpf_map_update_elem(&threads, &tid, &none, BPF_NOEXIST))
		thread = bpf_map_lookup_elem(&threads, &tid);
	if (!thread)
		count_full();
	return thread;
}

static __always_inline void begin_spin(__u64 lock, __u32 flags)
{
	struct lock_cpu *cpu = cpus_here();
	__u32 level;

	if (!cpu)
		return;
	/* All levels are in use if the program missed the ends of waits. */
	level = cpu->spinning;
	if (level >= SPIN_LEVELS)
		level = 0;
	cpu->spinning = level + 1;
	barrier();
	cpu->spins[level].lock = lock;
	cpu->spins[level].flags = flags;
	cpu->spins[level].since = bpf_ktime_get_ns();
}

/* Removes the innermost wait for a lock from this CPU. */
static __always_inline bool end_spin(__u64 lock, struct kernel_wait *wait)
{
	struct lock_cpu *cpu = cpus_here();

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

#endif /* PROFILE_LOCK_WAITS_H */
