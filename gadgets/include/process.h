/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The current process, in fields for Inspektor Gadget's enrichment, and the run's filters.
 */
#ifndef PROCESS_H
#define PROCESS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <gadget/types.h>
#include <gadget/macros.h>
#include <gadget/mntns.h>
#include <gadget/mntns_filter.h>
#include <gadget/filter.h>

/* --include-host, see gadget.yaml. */
const volatile bool include_host = false;
GADGET_PARAM(include_host);

/* --include-children, see gadget.yaml. */
const volatile bool include_children = false;
GADGET_PARAM(include_children);

/*
 * --also-pids, see gadget.yaml: process IDs in decimal, separated by commas. The operator checks the
 * text (pkg/tune/pids.go), and requires that it ends with a NUL.
 */
const volatile char also_pids[64] = {};
GADGET_PARAM(also_pids);

/* --include-children finds descendants of at most this many generations. */
#define MOST_GENERATIONS 16

/*
 * The ID of a cgroup in the unified hierarchy, or 0 if it is unknown. The
 * operator finds the process's systemd unit by this ID, also after the process has
 * exited, and hides the field.
 */
typedef __u64 profiles_cgroup_id;

/*
 * Except for the name, all threads of a process have the same values. So this can be part of a key.
 */
struct profiles_process {
	gadget_comm comm[TASK_COMM_LEN];
	gadget_pid pid;
	gadget_uid uid;
	gadget_mntns_id mntns_id;
	profiles_cgroup_id cgroup_id;
};

/*
 * The control group of a thread's process. Threads can be in different groups below that one, but
 * dom_cgrp is the same for all. Before Linux 5.5, the ID was not a number.
 */
static __always_inline profiles_cgroup_id cgroup_id_of(struct task_struct *task)
{
	if (!bpf_core_field_exists(struct task_struct, cgroups) ||
	    !bpf_core_field_exists(struct cgroup, dom_cgrp) ||
	    !bpf_core_field_exists(struct kernfs_node, id))
		return 0;
	return task->cgroups->dfl_cgrp->dom_cgrp->kn->id;
}

/*
 * Fills in the process of a thread. The verifier must know the type of task, as for an argument of
 * a tp_btf program. Members are then read without a call.
 */
static __always_inline void fill_process_from(struct task_struct *task,
					      struct profiles_process *proc)
{
	proc->pid = task->tgid;
	proc->uid = task->cred->uid.val;
	proc->mntns_id = task->nsproxy->mnt_ns->ns.inum;
	proc->cgroup_id = cgroup_id_of(task);
	/* The bytes after the end of the name must always be the same. */
	__builtin_memset(proc->comm, 0, sizeof(proc->comm));
	bpf_probe_read_kernel_str(proc->comm, sizeof(proc->comm), task->comm);
}

/* The same for the current thread. */
static __always_inline void fill_process(struct profiles_process *proc)
{
	fill_process_from(bpf_get_current_task_btf(), proc);
}

/*
 * Names a row that has no process. The name must be zero before. A literal becomes part of the
 * code. A constant array of 16 bytes would get the section .rodata.cst16, which the type information of
 * clang 14 lacks. Inspektor Gadget would then lose the defaults of all parameters, and only show
 * root's processes.
 */
#define name_row(proc, literal) \
	__builtin_memcpy((proc)->comm, literal, sizeof(literal))

/*
 * Reports whether a thread is outside all containers. Containers have their own PID namespace.
 * Services of the host do not, even if they have their own mount namespace.
 */
static __always_inline bool on_host(struct task_struct *task)
{
	return task->thread_pid->level == 0;
}

/* Reports whether the filters for processes exclude a process. The text of --also-pids is constant. */
static __always_inline bool not_chosen(gadget_pid pid)
{
	gadget_pid also = 0;

	if (!gadget_should_discard_pid(pid))
		return false;
	for (int i = 0; i < sizeof(also_pids); i++) {
		char c = also_pids[i];

		if (c >= '0' && c <= '9') {
			also = also * 10 + c - '0';
			continue;
		}
		if (also && also == pid)
			return false;
		if (!c)
			break;
		also = 0;
	}
	return true;
}

/*
 * Reports whether the filters for processes exclude a thread's process. A process whose parent has
 * exited has another parent, so it no longer descends from a chosen process.
 */
static __always_inline bool other_pid(struct task_struct *task, gadget_pid pid)
{
	if (!not_chosen(pid))
		return false;
	for (int i = 0; include_children && i < MOST_GENERATIONS; i++) {
		task = task->real_parent;
		if (!not_chosen(task->tgid))
			return false;
	}
	return true;
}

/*
 * Reports whether the run's filters exclude the process of a thread. The thread is the current one,
 * or one that the current one has just created.
 *
 * Inspektor Gadget's own gadget_should_discard_data_current would drop the host's processes if
 * there is a filter for containers. In Kubernetes there always is one.
 */
static __always_inline bool unwanted_task(struct task_struct *task,
					  const struct profiles_process *proc)
{
	if (gadget_should_discard_mntns_id(proc->mntns_id) &&
	    !(include_host && on_host(task)))
		return true;

	return other_pid(task, proc->pid) ||
	       gadget_should_discard_tid(bpf_get_current_pid_tgid()) ||
	       gadget_should_discard_uid(proc->uid) ||
	       gadget_should_discard_gid(bpf_get_current_uid_gid() >> 32) ||
	       gadget_should_discard_comm((gadget_comm *)proc->comm);
}

/* The same for the current process. */
static __always_inline bool unwanted(const struct profiles_process *proc)
{
	return unwanted_task(bpf_get_current_task_btf(), proc);
}

#endif /* PROCESS_H */
