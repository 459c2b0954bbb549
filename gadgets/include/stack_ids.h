/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Stacks by ID, in maps that never fill up for good.
 *
 * Use this in place of <gadget/kernel_stack_map.h> and <gadget/user_stack_map.h>. The maps have the
 * names and the value layout that Inspektor Gadget expects, ig_kstack and ig_ustack, but another
 * type. The original BPF_MAP_TYPE_STACK_TRACE has one bucket per stack, chosen by a hash. A used
 * bucket is never freed, so in a long run, more and more new stacks fail with -EEXIST. Here, stacks
 * are in an LRU hash map. The key is 31 bits of a hash of the addresses. If another stack has that
 * key, the next bits are tried. A full map drops the least recently used stacks, and needs no
 * cleaning.
 *
 * The ID of a stack is 1 or more. Without a stack, it is a negative errno as a signed number.
 * -EFAULT means that there are no frames, as in the kernel stack of a thread in user mode. It has
 * its own entry, an empty stack; otherwise Inspektor Gadget would warn of a lost stack at each such
 * row. Any other errno is a lost stack. A stack that fills its entry was truncated.
 *
 *	find_*		returns the ID that a stack has or will have
 *	keep_frames	puts it into a map
 */
#ifndef STACK_IDS_H
#define STACK_IDS_H

#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <gadget/types.h>
#include <gadget/macros.h>

/* Fixed by Inspektor Gadget: it reads arrays of this many addresses. */
#define STACK_DEPTH 127

typedef __u64 stack_frames[STACK_DEPTH];

/*
 * --stack-entries and --kernel-stack-entries, see gadget.yaml. Inspektor Gadget sizes a map by the
 * variable with its name. The default in gadget.yaml must be the same, because it is shown but not
 * set. For another number of user stacks, a gadget defines USER_STACKS before it includes this
 * file.
 */
#ifndef USER_STACKS
#define USER_STACKS 16384
#endif
const volatile int ig_ustack_max_entries = USER_STACKS;
GADGET_PARAM(ig_ustack_max_entries);

const volatile int ig_kstack_max_entries = 8192;
GADGET_PARAM(ig_kstack_max_entries);

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 0); /* ig_kstack_max_entries */
	__type(key, __u32);
	__type(value, stack_frames);
} ig_kstack SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 0); /* ig_ustack_max_entries */
	__type(key, __u32);
	__type(value, stack_frames);
} ig_ustack SEC(".maps");

/*
 * Stays empty: otel-profiles finds the files of all stacks, with their build IDs.
 * Inspektor Gadget reads this map for each stack that it turns into text, and does not start
 * without it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_stack_build_id[STACK_DEPTH]);
} ig_build_id SEC(".maps");

/* The ID of a stack in its map, and whether the stack is there. */
struct found_stack {
	__u32 id;
	__u32 fresh;
};

static __always_inline __u64 mix(__u64 h, __u64 with)
{
	h = (h ^ with) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 32;
}

/* Hashes up to the first empty address. The seed separates address spaces. */
static __always_inline __u64 stack_hash(const stack_frames *frames, __u64 seed)
{
	__u64 h = seed;

	for (int i = 0; i < STACK_DEPTH; i++) {
		if (!(*frames)[i])
			break;
		h = mix(h, (*frames)[i]);
	}
	return h;
}

static __always_inline bool same_stack(const stack_frames *a,
				       const stack_frames *b)
{
	for (int i = 0; i < STACK_DEPTH; i++) {
		if ((*a)[i] != (*b)[i])
			return false;
		if (!(*a)[i])
			break;
	}
	return true;
}

/*
 * The number of IDs to try for a stack. In a map with 100,000 stacks, another stack already has the
 * first ID of one in 20,000 new stacks. Only one in 10^17 new stacks finds all of its IDs in use.
 */
#define STACK_ID_TRIES 4

/*
 * Finds the present or future ID of a stack in map. The lookup marks it as used. If two CPUs add
 * two stacks with one ID at the same time, both get this ID.
 */
static __always_inline struct found_stack
find_frames(void *map, const stack_frames *frames, __u64 seed)
{
	struct found_stack found = { .id = -EEXIST };
	__u64 h = stack_hash(frames, seed);
	const stack_frames *there;
	__u32 id;

	for (int try = 0; try < STACK_ID_TRIES; try++) {
		id = h & 0x7fffffff;
		if (!id)
			id = 1;
		there = bpf_map_lookup_elem(map, &id);
		if (!there || same_stack(there, frames)) {
			found.id = id;
			found.fresh = !there;
			break;
		}
		h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ull;
	}
	return found;
}

/* Puts a stack into map, if it is not there. */
static __always_inline void keep_frames(void *map,
					const struct found_stack *found,
					const stack_frames *frames)
{
	__u32 id = found->id;

	if (found->fresh)
		bpf_map_update_elem(map, &id, frames, BPF_NOEXIST);
}

static __always_inline __u32 no_stack_id(void *map)
{
	static const stack_frames none;
	__u32 id = -EFAULT;

	if (!bpf_map_lookup_elem(map, &id))
		bpf_map_update_elem(map, &id, &none, BPF_ANY);
	return id;
}

/*
 * Finds the stack that a helper has walked into frames. taken is the helper's result: the length in
 * bytes, or an errno.
 */
static __always_inline struct found_stack
find_taken(void *map, const stack_frames *frames, long taken, __u64 seed)
{
	struct found_stack none = {};

	if (taken > 0)
		return find_frames(map, frames, seed);
	none.id = !taken || taken == -EFAULT ? no_stack_id(map) : taken;
	return none;
}

#endif /* STACK_IDS_H */
