/* SPDX-License-Identifier: GPL-2.0 */
/* Rows, and the captures that make them. */
#ifndef PROFILE_LOCK_ROW_H
#define PROFILE_LOCK_ROW_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/types.h>
#include <gadget/macros.h>

#include "../include/process.h"
#include "../include/stack_maps.h"
#include "../include/capture.h"
#include "kinds.h"

/* Whether each lock has its own rows. */
const volatile bool lock_address = false;
GADGET_PARAM(lock_address);

/* A number as text, which is empty without --lock-address. */
typedef char lock_name[24];

struct lock_key {
	struct profiles_process proc;
	profiles_stack_key user_stack_key;
	gadget_kernel_stack kern_stack_raw;
	profiles_kernel_stack kern_stack_id;
	enum lock_kind kind_raw;
	/* Keys are compared byte by byte. */
	__u32 __padding;
	lock_name address;
	char lock_file[96]; /* the operator fills it in */
	profiles_stack unwound_id;
};

struct lock_value {
	gadget_duration delay_raw;
	__u64 contentions;
	struct gadget_user_stack user_stack_raw;
	struct profiles_user_stack user_stack_id;
	/* For the operator, not for the row: see not_locks. */
	__u64 address_raw;
	/* The file and offset of a shared lock, with --lock-address. */
	__u64 shared_raw;
};

CAPTURE_ROWS(locks, rows, struct lock_key, struct lock_value)

struct lock_capture {
	struct profiles_capture head;
	struct lock_key key;
	struct lock_value value;
};

/*
 * The address of a program's lock is unchanged. The address of a kernel lock would reveal the
 * kernel's place in memory, so it is mixed with a random number of the run.
 */
static volatile __u64 secret;

static __always_inline void name_lock(lock_name *name, __u64 lock, bool kernel)
{
	__builtin_memset(name, 0, sizeof(*name));
	if (!lock_address || !lock)
		return;
	if (kernel) {
		if (!secret)
			secret = (__u64)bpf_get_prandom_u32() << 32 |
				 bpf_get_prandom_u32() | 1;
		lock = mix(mix(lock, secret), secret);
	}
	(*name)[0] = '0';
	(*name)[1] = 'x';
	for (int i = 0; i < 16; i++) {
		__u8 digit = (lock >> (60 - 4 * i)) & 0xf;

		(*name)[2 + i] = digit < 10 ? '0' + digit : 'a' + digit - 10;
	}
}

#endif /* PROFILE_LOCK_ROW_H */
