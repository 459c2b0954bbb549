/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Kernel and user stacks for Inspektor Gadget's formatters, in maps that do
 * not wear out.
 *
 * Use this in place of <gadget/kernel_stack_map.h> and <gadget/user_stack_map.h>.
 * The maps have the names and the value layout that Inspektor Gadget looks
 * up, ig_kstack and ig_ustack, but another type. The BPF_MAP_TYPE_STACK_TRACE
 * of the original headers gives every stack one bucket, chosen by a hash; a
 * bucket once taken stays taken, so that in a long run more and more new
 * stacks end as -EEXIST. Here a stack is an entry of an LRU hash map under 31
 * bits of a hash of its addresses, and what is found under such an ID is compared
 * with the stack at hand: if it is another one, the next bits are tried. When the
 * map is full the kernel drops the stacks that have not been seen for longest.
 * Nobody has to empty the maps.
 *
 * An ID is 1 or more for a stack and, read as a signed number, a negative
 * errno for none. -EFAULT means that there are no frames to be had, as in the
 * kernel stack of a thread that was in user mode; it has an entry of its own,
 * an empty stack, or Inspektor Gadget would warn of a lost stack at each such
 * row. Any other errno is a stack that was lost. A stack that fills its entry
 * to the end was cut there.
 *
 * In three steps:
 *
 *	put_user_stack,		walk a stack of the current thread, and put its ID
 *	put_kernel_stack	into a row: the one it has, or will have
 *	row_of			of rows.h finds the row, or makes it
 *	keep_stacks		puts the stacks into the maps
 *
 * A stack is for a row: were those kept that find no room among the rows, they
 * would drop the stacks of rows from the maps.
 *
 * For programs that walk and keep at different times and in different threads:
 *
 *	take_*		walks a stack into memory of the caller
 *	find_*		returns the ID that what was taken has, or will have
 *	keep_frames	puts it into a map
 *	fill_process_of	what Inspektor Gadget needs to name a user stack's frames
 */
#ifndef STACK_MAPS_H
#define STACK_MAPS_H

#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <gadget/types.h>
#include <gadget/macros.h>

/* Fixed by Inspektor Gadget: it reads arrays of this many addresses. */
#define STACK_DEPTH 127

typedef __u64 stack_frames[STACK_DEPTH];

/*
 * --stack-entries and --kernel-stack-entries, see gadget.yaml. Inspektor Gadget
 * sizes a map by the variable that is called after it. The default in gadget.yaml
 * must be the one here: it is shown, but not set. A gadget that needs another
 * number of user stacks defines USER_STACKS before it includes this file.
 */
#ifndef USER_STACKS
#define USER_STACKS 16384
#endif
const volatile int ig_ustack_max_entries = USER_STACKS;
GADGET_PARAM(ig_ustack_max_entries);

const volatile int ig_kstack_max_entries = 8192;
GADGET_PARAM(ig_kstack_max_entries);

/* --collect-ustack, on unless switched off: Inspektor Gadget knows the name. */
const volatile bool collect_ustack = true;
GADGET_PARAM(collect_ustack);

/* A parameter with the values auto, true and false, of which it tells true. */
static __always_inline bool is_true(const volatile char *param)
{
	return param[0] == 't';
}

/*
 * --format-stacks: Inspektor Gadget turns the stacks of each row into text,
 * which costs more than all the rest of a run. With "false" a row has the IDs
 * in the types below, which only otel-profiles reads, once per distinct stack.
 * otel-profiles makes "auto" into "false" where nobody reads the text.
 */
const volatile char format_stacks[8] = "auto";
GADGET_PARAM(format_stacks);

#define stacks_by_id (format_stacks[0] == 'f')

/* The ID of a user stack as part of a row's key, which nobody else reads. */
typedef __u64 profiles_stack_key;

/* The ID of a stack in ig_kstack. */
typedef __u32 profiles_kernel_stack;

/* The members of struct gadget_user_stack, the ID being that in ig_ustack. */
struct profiles_user_stack {
	__u32 major;
	__u32 minor;
	__u64 inode;
	__u64 mtime_sec;
	__u32 mtime_nsec;
	__u32 base_addr_hash;
	__u32 stack_id;
	__u32 tgid_level0;
	__u32 pid_level0;
	__u32 pidns_level0;
	__u32 pid_level1;
	__u32 pidns_level1;
	__u64 otel_correlation_id;
	__u64 boot_timestamp;
};
_Static_assert(sizeof(struct profiles_user_stack) ==
		       sizeof(struct gadget_user_stack),
	       "one is filled as the other");

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
 * Inspektor Gadget looks into this map for each stack that it turns into text, and
 * does not come up without it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_stack_build_id[STACK_DEPTH]);
} ig_build_id SEC(".maps");

/* How many frames the tracing may put between a stack and its reader. */
#define TRACING_DEPTH 16

/* A kernel stack with the tracing's frames. */
typedef __u64 deep_frames[STACK_DEPTH + TRACING_DEPTH];

/* Whether a stack is to be put into its map, and under which ID. */
struct found_stack {
	__u32 id;
	__u32 fresh;
};

/*
 * Per CPU: the stacks of the row at hand. A stack is 1 kB, too much for the BPF
 * stack. The programs that use these run with preemption off and do not nest on a
 * CPU.
 */
struct row_stacks {
	stack_frames user;
	deep_frames kernel;
	__u32 kernel_skip; /* how many of kernel are the tracing's */
	struct found_stack found_user;
	struct found_stack found_kernel;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct row_stacks);
} row_stacks SEC(".maps");

static __always_inline __u64 mix(__u64 h, __u64 with)
{
	h = (h ^ with) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 32;
}

/* Hashes up to the first empty address. The seed sets address spaces apart. */
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
 * How many IDs are tried for a stack. In a map with 100,000 stacks, one in
 * 20,000 finds its first ID taken by another, and one in 10^17 all of them.
 */
#define STACK_ID_TRIES 4

/*
 * Finds the ID of a stack in map, or the one that it will have. The look-up
 * marks it as used. Two CPUs that add two stacks under one ID in the same moment
 * are not told apart.
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

/* Puts a stack into map, unless it is there. */
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
 * Finds what a helper has walked into frames. taken is what it returned: the
 * length in bytes, or why there is no stack.
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

/*
 * Walks the user stack of the current thread. The kernel cannot walk that of
 * another thread.
 */
static __always_inline long take_user_frames(void *ctx, stack_frames *frames)
{
	return bpf_get_stack(ctx, frames, sizeof(*frames), BPF_F_USER_STACK);
}

/* Walks the current kernel stack. */
static __always_inline long take_kernel_frames(void *ctx, deep_frames *frames)
{
	return bpf_get_stack(ctx, frames, sizeof(*frames), 0);
}

/*
 * How many frames of the tracing a kernel stack begins with that was taken in a
 * program which hangs on a tracepoint or a function: those before the first
 * address within [start, end). Their number depends on the kernel and on who
 * else traces. If there is no such address, none is left out; nor is one of a
 * stack that the kernel cut at its limit: user space leaves them out, and takes a
 * stack for cut that fills its entry.
 */
static __always_inline __u32 tracing_frames(const deep_frames *frames,
					    __u64 start, __u64 end)
{
	if ((*frames)[STACK_DEPTH - 1])
		return 0;
	for (int i = 0; i < TRACING_DEPTH; i++)
		if ((*frames)[i] >= start && (*frames)[i] < end)
			return i;
	return 0;
}

/* A kernel stack without as many frames at its leaf. */
static __always_inline const stack_frames *
without_frames(const deep_frames *frames, __u32 skip)
{
	return (const void *)&(*frames)[skip % TRACING_DEPTH];
}

static __always_inline struct row_stacks *row_stacks_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&row_stacks, &zero);
}

/*
 * Walks the current kernel stack, for put_kernel_stack and keep_stacks, and
 * returns the ID that it has or will have. It begins at the first address within
 * [start, end), see tracing_frames; in a sampler's both are 0.
 */
static __always_inline __u32 kernel_stack_id_from(void *ctx, __u64 start,
						  __u64 end)
{
	struct row_stacks *stacks = row_stacks_here();
	long taken;

	if (!stacks)
		return -ENOENT;
	taken = take_kernel_frames(ctx, &stacks->kernel);
	stacks->kernel_skip = end ? tracing_frames(&stacks->kernel, start, end) : 0;
	stacks->found_kernel = find_taken(
		&ig_kstack, without_frames(&stacks->kernel, stacks->kernel_skip),
		taken, 0);
	return stacks->found_kernel.id;
}

/* The same for a fault or call in user mode, of which the kernel's stack says nothing. */
static __always_inline __u32 no_kernel_stack_id(void)
{
	struct row_stacks *stacks = row_stacks_here();

	if (stacks)
		stacks->found_kernel.fresh = 0;
	return no_stack_id(&ig_kstack);
}

/* The modification time has moved and changed its type over the years. */
struct inode___since_6_11 {
	time64_t i_mtime_sec;
	u32 i_mtime_nsec;
} __attribute__((preserve_access_index));

struct inode___since_6_7 {
	struct timespec64 __i_mtime;
} __attribute__((preserve_access_index));

struct inode___before_6_7 {
	struct timespec64 i_mtime;
} __attribute__((preserve_access_index));

static __always_inline void fill_mtime(struct gadget_user_stack *ustack,
				       struct inode *inode)
{
	struct inode___since_6_11 *split = (void *)inode;
	struct inode___since_6_7 *renamed = (void *)inode;
	struct inode___before_6_7 *plain = (void *)inode;

	if (bpf_core_field_exists(split->i_mtime_sec)) {
		ustack->mtime_sec = split->i_mtime_sec;
		ustack->mtime_nsec = split->i_mtime_nsec;
	} else if (bpf_core_field_exists(renamed->__i_mtime)) {
		ustack->mtime_sec = renamed->__i_mtime.tv_sec;
		ustack->mtime_nsec = renamed->__i_mtime.tv_nsec;
	} else if (bpf_core_field_exists(plain->i_mtime)) {
		ustack->mtime_sec = plain->i_mtime.tv_sec;
		ustack->mtime_nsec = plain->i_mtime.tv_nsec;
	}
}

/*
 * Fills what Inspektor Gadget needs to name the frames of a thread's user
 * stack, but for its ID: the executable and the process to look the symbols up
 * in. Reports false and leaves all of it zero, which Inspektor Gadget reads as
 * "no user stack", with --collect-ustack=false and for threads without user
 * memory. The verifier has to know what task is, as it does an argument of a
 * tp_btf program: members are then read without a call.
 *
 * boot_timestamp differs each time, and so does the thread's ID between the
 * threads of a process: a map that aggregates keeps this struct in the value
 * and only its stack_id in the key.
 */
static __always_inline bool fill_process_of(struct task_struct *task,
					    struct gadget_user_stack *ustack)
{
	struct mm_struct *mm;
	struct inode *inode;
	struct pid *pid;
	struct upid *upid;
	dev_t dev;

	__builtin_memset(ustack, 0, sizeof(*ustack));
	if (!collect_ustack)
		return false;
	mm = task->mm;
	if (!mm)
		return false;

	/* The same addresses in two programs are two stacks. */
	ustack->base_addr_hash =
		mix(mix((__u64)BPF_CORE_READ(task, mm), mm->start_code),
		    mm->start_stack);
	ustack->boot_timestamp = bpf_ktime_get_boot_ns();

	inode = mm->exe_file->f_inode;
	dev = inode->i_sb->s_dev;
	ustack->major = dev >> 20;
	ustack->minor = dev & ((1u << 20) - 1);
	ustack->inode = inode->i_ino;
	fill_mtime(ustack, inode);

	pid = task->thread_pid;
	upid = (void *)&pid->numbers;
	ustack->tgid_level0 = task->tgid;
	ustack->pid_level0 = BPF_CORE_READ(upid, nr);
	ustack->pidns_level0 = BPF_CORE_READ(upid, ns, ns.inum);
	if (pid->level > 0) {
		upid++;
		ustack->pid_level1 = BPF_CORE_READ(upid, nr);
		ustack->pidns_level1 = BPF_CORE_READ(upid, ns, ns.inum);
	}
	return true;
}

/*
 * Finds a user stack that take_user_frames has taken of the process that
 * fill_process_of has described.
 */
static __always_inline struct found_stack
find_user_stack(struct gadget_user_stack *ustack, const stack_frames *frames,
		long taken)
{
	struct found_stack found = find_taken(&ig_ustack, frames, taken,
					      ustack->base_addr_hash);

	ustack->stack_id = found.id;
	return found;
}

/* Walks and finds the user stack of the current thread, for keep_stacks. */
static __always_inline void fill_user_stack(void *ctx,
					    struct gadget_user_stack *ustack)
{
	struct row_stacks *stacks = row_stacks_here();

	if (!stacks)
		return;
	stacks->found_user.fresh = 0;
	if (!fill_process_of(bpf_get_current_task_btf(), ustack))
		return;
	stacks->found_user = find_user_stack(ustack, &stacks->user,
					     take_user_frames(ctx, &stacks->user));
}

/*
 * Keeps the stacks whose IDs were put into a row last on this CPU, for a program
 * that has got its row.
 */
static __always_inline void keep_stacks(void)
{
	struct row_stacks *stacks = row_stacks_here();

	if (!stacks)
		return;
	keep_frames(&ig_kstack, &stacks->found_kernel,
		    without_frames(&stacks->kernel, stacks->kernel_skip));
	keep_frames(&ig_ustack, &stacks->found_user, &stacks->user);
}

/* Puts the ID of a kernel stack where it is wanted in a row. */
static __always_inline void put_kernel_stack(__u32 id, gadget_kernel_stack *raw,
					     profiles_kernel_stack *by_id)
{
	*raw = stacks_by_id ? no_stack_id(&ig_kstack) : id;
	*by_id = stacks_by_id ? id : 0;
}

/*
 * The one of a row's two forms of a user stack that is wanted; the other one is
 * emptied.
 */
static __always_inline struct gadget_user_stack *
user_stack_form(struct gadget_user_stack *raw, struct profiles_user_stack *by_id)
{
	__builtin_memset(raw, 0, sizeof(*raw));
	__builtin_memset(by_id, 0, sizeof(*by_id));
	return stacks_by_id ? (struct gadget_user_stack *)by_id : raw;
}

/*
 * Walks the user stack of the current thread and puts its ID, which it returns,
 * into a row. keep_stacks keeps it.
 */
static __always_inline __u32
put_user_stack(void *ctx, struct gadget_user_stack *raw,
	       struct profiles_user_stack *by_id)
{
	struct gadget_user_stack *ustack = user_stack_form(raw, by_id);

	fill_user_stack(ctx, ustack);
	return ustack->stack_id;
}

#endif /* STACK_MAPS_H */
