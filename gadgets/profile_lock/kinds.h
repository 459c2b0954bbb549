/* SPDX-License-Identifier: GPL-2.0 */
/* The kinds of locks, and the kernel's flags for them. */
#ifndef PROFILE_LOCK_KINDS_H
#define PROFILE_LOCK_KINDS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

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

/* Users see these names. */
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
	/* The operator finds these: see gadget.yaml. */
	user_mutex,
	user_rwlock,
	user_once,
	/* Not a lock, or an unknown one. */
	user_futex,
};

static __always_inline enum lock_kind kernel_kind(__u32 flags)
{
	if (flags & LCB_F_MUTEX)
		return kernel_mutex;
	if (flags & LCB_F_PERCPU)
		return kernel_percpu_rwsem;
	/* On a kernel with PREEMPT_RT, this includes spinlocks and mutexes. */
	if (flags & LCB_F_RT)
		return kernel_rtmutex;
	if (flags & LCB_F_SPIN)
		return flags & (LCB_F_READ | LCB_F_WRITE) ? kernel_rwlock :
							    kernel_spinlock;
	if (flags & (LCB_F_READ | LCB_F_WRITE))
		return kernel_rwsem;
	return kernel_semaphore;
}

/* The thread spins for a mutex, and may sleep later in the same wait. */
static __always_inline bool spins(__u32 flags)
{
	return (flags & (LCB_F_SPIN | LCB_F_MUTEX)) == LCB_F_SPIN;
}

#endif /* PROFILE_LOCK_KINDS_H */
