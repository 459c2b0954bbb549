/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Rows that add up in the kernel. A hash map has the identity of a row as its key, and the counts
 * as its value. Inspektor Gadget reads and clears it once a second. Nothing in a key may change
 * from event to event.
 */
#ifndef ROWS_H
#define ROWS_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <gadget/macros.h>

#include "process.h"

/*
 * --rows, see gadget.yaml: the maximum number of rows in one second. Inspektor Gadget sizes a map
 * called rows by this variable. A gadget that needs another number defines ROWS before it includes
 * this file.
 */
#ifndef ROWS
#define ROWS 16384
#endif
const volatile int rows_max_entries = ROWS;
GADGET_PARAM(rows_max_entries);

/*
 * Written by otel-profiles after each read of the map, see pkg/tune/rows.go. A turn is the time
 * between two reads. Its number is random and odd, or 0 without otel-profiles.
 */
struct rows_read {
	__u64 rows; /* read so far */
	__u32 turn;
	__u32 __padding;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rows_read);
} rows_read SEC(".maps");

/* The number of rows made so far. The rows in the map are the difference from rows_read. */
static __u64 rows_made;

/*
 * Rows by process and by user: the turn in the upper half, and the rows in the lower half. Each
 * process and user has two slots, and the smaller number counts. So it rarely gets the rows of
 * others, because these would need to be in both slots. The slots depend on the turn, so nobody can
 * choose to share the slots of another.
 */
#define PROCESS_SLOT_BITS 12
#define USER_SLOT_BITS 10
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << PROCESS_SLOT_BITS);
	__type(key, __u32);
	__type(value, __u64);
} rows_of_processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << USER_SLOT_BITS);
	__type(key, __u32);
	__type(value, __u64);
} rows_of_users SEC(".maps");

/* The two slots of a process or user. */
struct rows_of {
	__u64 *first, *second;
};

static __always_inline __u64 *slot_of(void *slots, __u32 hash, __u32 bits,
				      __u32 turn)
{
	__u32 slot = hash >> (32 - bits);
	__u64 *count = bpf_map_lookup_elem(slots, &slot);

	if (count && *count >> 32 != turn)
		*count = (__u64)turn << 32;
	return count;
}

static __always_inline struct rows_of rows_of(void *slots, __u32 id, __u32 bits,
					      __u32 turn)
{
	__u32 hash = (id + 1) * turn; /* 0 would have one slot */

	return (struct rows_of){
		slot_of(slots, hash, bits, turn),
		slot_of(slots, hash * 0x9e3779b1, bits, turn),
	};
}

/* The number of rows that a process or user has made in this turn. */
static __always_inline __u32 rows_in(const struct rows_of *of)
{
	__u32 first = *of->first, second = *of->second;

	return first < second ? first : second;
}

static __always_inline void add_row(const struct rows_of *of)
{
	__sync_fetch_and_add(of->first, 1);
	__sync_fetch_and_add(of->second, 1);
}

/*
 * Reports whether a process may have a new row. The fewer rows are free, the fewer a process may
 * have. So a flood of rows leaves some for others:
 *  - A process may have up to four times as many rows as are free, so at most four fifths of all.
 *  - If its user has more than eight times as many, a process may have a sixteenth of the free rows.
 *    If its user has more than 64 times as many, it gets no new row.
 */
static __always_inline bool may_have_row(__s64 free, __u32 of_process,
					 __u32 of_user)
{
	if (of_user > 64 * free)
		return false;
	if (of_user > 8 * free)
		return 16 * (of_process + 1ll) <= free;
	return of_process <= 4 * free;
}

/*
 * Returns the value of the row with the given key, or NULL if rows is full, or too full for the
 * process. Change the value's members with __sync_fetch_and_add. A new row is a copy of fresh, with
 * zero counts. proc is NULL for a row of no process.
 */
static __always_inline void *row_of(void *rows, const struct profiles_process *proc,
				    const void *key, const void *fresh)
{
	struct rows_of of_process = {}, of_user = {};
	struct rows_read *read;
	__u32 zero = 0, turn;
	void *row = bpf_map_lookup_elem(rows, key);

	if (row)
		return row;
	read = bpf_map_lookup_elem(&rows_read, &zero);
	if (proc && read && read->turn) {
		turn = read->turn;
		of_process = rows_of(&rows_of_processes, proc->pid,
				     PROCESS_SLOT_BITS, turn);
		of_user = rows_of(&rows_of_users, proc->uid, USER_SLOT_BITS,
				  turn);
		if (!of_process.first || !of_process.second ||
		    !of_user.first || !of_user.second ||
		    !may_have_row(rows_max_entries - (__s64)(rows_made - read->rows),
				  rows_in(&of_process), rows_in(&of_user)))
			return NULL;
	}
	/* If another CPU is faster, its row is used. */
	if (!bpf_map_update_elem(rows, key, fresh, BPF_NOEXIST)) {
		__sync_fetch_and_add(&rows_made, 1);
		if (of_process.first && of_process.second &&
		    of_user.first && of_user.second) {
			add_row(&of_process);
			add_row(&of_user);
		}
	}
	return bpf_map_lookup_elem(rows, key);
}

#endif /* ROWS_H */
