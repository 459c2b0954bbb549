/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Rows that add up in the kernel. A hash map has the identity of a row as its key, and the counts
 * as its value. Inspektor Gadget reads and clears it once a second. A key must not have anything
 * that changes from event to event.
 */
#ifndef ROWS_H
#define ROWS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/macros.h>

/*
 * --rows, see gadget.yaml: at most this many different rows in one second. Inspektor
 * Gadget sizes a map called rows by this variable. A gadget that needs another number
 * defines ROWS before it includes this file.
 */
#ifndef ROWS
#define ROWS 16384
#endif
const volatile int rows_max_entries = ROWS;
GADGET_PARAM(rows_max_entries);

/*
 * A flood of distinct rows costs its author first: a process gets no new row while it has
 * more than four times as many as are free. The rows counted are those since user space
 * last read and cleared the map, which shows by the first of them: it is gone.
 */
#define ROW_OWNERS 4096
static struct {
	__u64 first[16]; /* a key */
	__u32 interval; /* a random number: each time, others share a counter */
	__u32 count;
	struct row_owner {
		__u32 interval;
		__u32 count;
	} owners[ROW_OWNERS]; /* by PID and interval */
} rows_taken;

static __always_inline void *row_by(void *rows, const void *key, int size,
				    __u32 pid, const void *fresh)
{
	void *row = bpf_map_lookup_elem(rows, key);
	struct row_owner *owner;

	if (row)
		return row;
	if (!bpf_map_lookup_elem(rows, rows_taken.first)) {
		__builtin_memcpy(rows_taken.first,
				 __builtin_assume_aligned(key, 8), size);
		rows_taken.interval = bpf_get_prandom_u32();
		rows_taken.count = 0;
	}
	owner = &rows_taken.owners[(pid ^ rows_taken.interval) * 0x9e3779b1u /
				   (0x100000000 / ROW_OWNERS)];
	if (owner->interval != rows_taken.interval) {
		owner->interval = rows_taken.interval;
		owner->count = 0;
	}
	if ((__s64)owner->count >
	    4 * ((__s64)rows_max_entries - rows_taken.count))
		return NULL;
	/* If another CPU is faster, its row is used. */
	if (!bpf_map_update_elem(rows, key, fresh, BPF_NOEXIST)) {
		__sync_fetch_and_add(&owner->count, 1);
		__sync_fetch_and_add(&rows_taken.count, 1);
	}
	return bpf_map_lookup_elem(rows, key);
}

/*
 * The value of the row with the given key, for __sync_fetch_and_add on its
 * members, or NULL where there is none for its process, key->proc. A new row begins
 * as fresh, with its counts at zero.
 */
#define row_of(rows, key, fresh)                                               \
	({                                                                     \
		_Static_assert(sizeof(*(key)) <= sizeof(rows_taken.first),     \
			       "a longer key needs a longer first");           \
		row_by(rows, key, sizeof(*(key)), (key)->proc.pid, fresh);     \
	})

#endif /* ROWS_H */
