/* SPDX-License-Identifier: GPL-2.0 */
/* The reason of a wait, by the thread's system call. */
#ifndef PROFILE_OFFCPU_CALL_H
#define PROFILE_OFFCPU_CALL_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "reason.h"

/* The kind of system call. Users see these names. */
enum off_cpu_call {
	/* No known system call: a page fault, a preempted thread, or a kernel thread. */
	no_syscall,
	/* Any other one. */
	other_syscall,
	futex,
	poll,
	read,
	write,
	receive,
	send,
	accept,
	connect,
	sleep,
	wait,
	sync,
	lock,
	signal,
	io_uring,
};

/* A 32-bit program has other numbers: TS_COMPAT of arch/x86, TIF_32BIT of arch/arm64. */
#if defined(__TARGET_ARCH_x86)
#define is_compat(task) ((task)->thread_info.status & 0x2)
#define call_number(regs) ((long)(regs)->orig_ax)
#else
#define is_compat(task) ((task)->thread_info.flags & (1 << 22))
#define call_number(regs) ((long)(regs)->syscallno)
#endif

static __always_inline enum off_cpu_call kind_of_call(long number)
{
	switch (number) {
#if defined(__TARGET_ARCH_x86)
	case 202: /* futex */
	case 449: /* futex_waitv */
	case 455: /* futex_wait */
		return futex;
	case 7: /* poll */
	case 23: /* select */
	case 232: /* epoll_wait */
	case 270: /* pselect6 */
	case 271: /* ppoll */
	case 281: /* epoll_pwait */
	case 441: /* epoll_pwait2 */
		return poll;
	case 0: /* read */
	case 17: /* pread64 */
	case 19: /* readv */
	case 295: /* preadv */
	case 327: /* preadv2 */
		return read;
	case 1: /* write */
	case 18: /* pwrite64 */
	case 20: /* writev */
	case 296: /* pwritev */
	case 328: /* pwritev2 */
		return write;
	case 45: /* recvfrom */
	case 47: /* recvmsg */
	case 299: /* recvmmsg */
		return receive;
	case 44: /* sendto */
	case 46: /* sendmsg */
	case 307: /* sendmmsg */
	case 40: /* sendfile */
		return send;
	case 43: /* accept */
	case 288: /* accept4 */
		return accept;
	case 42: /* connect */
		return connect;
	case 35: /* nanosleep */
	case 230: /* clock_nanosleep */
		return sleep;
	case 61: /* wait4 */
	case 247: /* waitid */
		return wait;
	case 26: /* msync */
	case 74: /* fsync */
	case 75: /* fdatasync */
	case 162: /* sync */
	case 277: /* sync_file_range */
	case 306: /* syncfs */
		return sync;
	case 72: /* fcntl */
	case 73: /* flock */
		return lock;
	case 34: /* pause */
	case 128: /* rt_sigtimedwait */
	case 130: /* rt_sigsuspend */
		return signal;
	case 426: /* io_uring_enter */
	case 208: /* io_getevents */
		return io_uring;
#else
	case 98: /* futex */
	case 449: /* futex_waitv */
	case 455: /* futex_wait */
		return futex;
	case 22: /* epoll_pwait */
	case 72: /* pselect6 */
	case 73: /* ppoll */
	case 441: /* epoll_pwait2 */
		return poll;
	case 63: /* read */
	case 65: /* readv */
	case 67: /* pread64 */
	case 69: /* preadv */
	case 286: /* preadv2 */
		return read;
	case 64: /* write */
	case 66: /* writev */
	case 68: /* pwrite64 */
	case 70: /* pwritev */
	case 287: /* pwritev2 */
		return write;
	case 207: /* recvfrom */
	case 212: /* recvmsg */
	case 243: /* recvmmsg */
		return receive;
	case 206: /* sendto */
	case 211: /* sendmsg */
	case 269: /* sendmmsg */
	case 71: /* sendfile */
		return send;
	case 202: /* accept */
	case 242: /* accept4 */
		return accept;
	case 203: /* connect */
		return connect;
	case 101: /* nanosleep */
	case 115: /* clock_nanosleep */
		return sleep;
	case 95: /* waitid */
	case 260: /* wait4 */
		return wait;
	case 81: /* sync */
	case 82: /* fsync */
	case 83: /* fdatasync */
	case 84: /* sync_file_range */
	case 227: /* msync */
	case 267: /* syncfs */
		return sync;
	case 25: /* fcntl */
	case 32: /* flock */
		return lock;
	case 133: /* rt_sigsuspend */
	case 137: /* rt_sigtimedwait */
		return signal;
	case 426: /* io_uring_enter */
	case 4: /* io_getevents */
		return io_uring;
#endif
	}
	return other_syscall;
}

/*
 * The system call in which a thread waits, from its registers at the entry to the kernel. They have
 * no number for exceptions and interrupts. The verifier must know the type of task.
 */
static __always_inline enum off_cpu_call call_of(struct task_struct *task,
						 enum off_cpu_reason reason)
{
	struct pt_regs *regs;
	long number;

	if (reason == preempted || !task->mm ||
	    !bpf_core_enum_value_exists(enum bpf_func_id,
					BPF_FUNC_task_pt_regs) ||
	    is_compat(task))
		return no_syscall;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	number = call_number(regs);
	return number < 0 ? no_syscall : kind_of_call(number);
}

#endif /* PROFILE_OFFCPU_CALL_H */
