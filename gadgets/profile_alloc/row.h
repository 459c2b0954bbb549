/* SPDX-License-Identifier: GPL-2.0 */
/* Rows, and the captures that make them. */
#ifndef PROFILE_ALLOC_ROW_H
#define PROFILE_ALLOC_ROW_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#include "../include/process.h"
#include "../include/stack_maps.h"
#include "../include/capture.h"

/* How the probes were attached. Users see these names. */
enum alloc_attached {
	always,
	/* For stretches of time; rows are scaled to the whole time: see stretch in capture.h. */
	stretches,
};

struct alloc_key {
	struct profiles_process proc;
	profiles_stack_key user_stack_key;
	enum alloc_attached attached_raw;
	/* Keys are compared byte by byte. */
	__u32 __padding;
	profiles_stack unwound_id;
};

struct alloc_value {
	__u64 bytes;
	__u64 calls;
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
};

CAPTURE_ROWS(allocations, rows, struct alloc_key, struct alloc_value)

/* With --live. */
CAPTURE_ROWS(in_use, in_use_rows, struct alloc_key, struct alloc_value)

struct alloc_capture {
	struct profiles_capture head;
	struct alloc_key key;
	struct alloc_value value;
};

#endif /* PROFILE_ALLOC_ROW_H */
