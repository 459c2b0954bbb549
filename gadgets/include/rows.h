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
 * Returns the value of the row with the given key, for __sync_fetch_and_add on its members, or NULL
 * if rows is full. A new row is a copy of fresh, with zero counts.
 */
static __always_inline void *row_of(void *rows, const void *key,
				    const void *fresh)
{
	void *row = bpf_map_lookup_elem(rows, key);

	if (row)
		return row;
	/* If another CPU is faster, its row is used. */
	bpf_map_update_elem(rows, key, fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(rows, key);
}

#endif /* ROWS_H */
