/* SPDX-License-Identifier: GPL-2.0 */
/* Processes that the operator must inspect. */
#ifndef PROFILE_ALLOC_NEWCOMERS_H
#define PROFILE_ALLOC_NEWCOMERS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

#include "../include/process.h"

/*
 * Processes for the operator to inspect. They are new, have called execve, or have lost their first
 * thread.
 */
struct newcomer {
	__u32 pid;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} newcomers SEC(".maps");

static __always_inline bool tell(struct task_struct *task)
{
	struct profiles_process proc = {};
	struct newcomer *newcomer;

	fill_process_from(task, &proc);
	if (unwanted_task(task, &proc))
		return false;
	newcomer = bpf_ringbuf_reserve(&newcomers, sizeof(*newcomer), 0);
	if (newcomer) {
		newcomer->pid = proc.pid;
		bpf_ringbuf_submit(newcomer, 0);
	}
	return true;
}

#endif /* PROFILE_ALLOC_NEWCOMERS_H */
