/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The current process, in the fields that Inspektor Gadget enriches, and the filters of the run.
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

/*
 * The ID of a control group in the unified hierarchy, or 0 if it is not known. The
 * operator names the systemd unit of a process by it, also when that is gone, and
 * hides the field.
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
 * The control group of a thread's process. Threads can be spread over groups of
 * their own below that one: dom_cgrp is the same for all. Before Linux 5.5 the ID
 * was no number.
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
	/* The bytes after the name's end must always be the same. */
	__builtin_memset(proc->comm, 0, sizeof(proc->comm));
	bpf_probe_read_kernel_str(proc->comm, sizeof(proc->comm), task->comm);
}

/* The same of the current thread. */
static __always_inline void fill_process(struct profiles_process *proc)
{
	fill_process_from(bpf_get_current_task_btf(), proc);
}

/*
 * The name of a row that stands for no process, which begins as zeros. A literal
 * becomes part of the code: a constant array of 16 bytes would get a section of
 * its own, .rodata.cst16, that the type information of clang 14 knows nothing of.
 * Inspektor Gadget then loses the defaults of all parameters, and shows the
 * processes of root alone.
 */
#define name_row(proc, literal) \
	__builtin_memcpy((proc)->comm, literal, sizeof(literal))

/*
 * Reports whether the current thread is outside all containers: containers
 * have a PID namespace of their own, services of the host do not, even those
 * that have a mount namespace of their own.
 */
static __always_inline bool on_host(void)
{
	return bpf_get_current_task_btf()->thread_pid->level == 0;
}

/*
 * Whether the filters of the run leave the current process out.
 *
 * Inspektor Gadget's own gadget_should_discard_data_current would drop the
 * host's processes as soon as there is a filter for containers, and in
 * Kubernetes there always is.
 */
static __always_inline bool unwanted(const struct profiles_process *proc)
{
	if (gadget_should_discard_mntns_id(proc->mntns_id) &&
	    !(include_host && on_host()))
		return true;

	return gadget_should_discard_pid(proc->pid) ||
	       gadget_should_discard_tid(bpf_get_current_pid_tgid()) ||
	       gadget_should_discard_uid(proc->uid) ||
	       gadget_should_discard_gid(bpf_get_current_uid_gid() >> 32) ||
	       gadget_should_discard_comm((gadget_comm *)proc->comm);
}

#endif /* PROCESS_H */
