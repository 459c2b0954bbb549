/* SPDX-License-Identifier: GPL-2.0 */
#ifndef PER_CPU_H
#define PER_CPU_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

/* Defines a map with one struct for each CPU, zero at first, and NAME_here(), which returns this CPU's. */
#define PER_CPU(what, name)                                \
	struct {                                           \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);   \
		__uint(max_entries, 1);                    \
		__type(key, __u32);                        \
		__type(value, what);                       \
	} name SEC(".maps");                               \
	static __always_inline what *name##_here(void)     \
	{                                                  \
		__u32 zero = 0;                            \
                                                           \
		return bpf_map_lookup_elem(&name, &zero);  \
	}

#endif /* PER_CPU_H */
