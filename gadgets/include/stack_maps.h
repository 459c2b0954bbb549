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
 * stacks end as -EEXIST. Here a stack is an entry of an LRU hash map under a
 * 31 bit hash of its addresses. Two stacks compete only if all those bits are
 * the same, and when the map is full the kernel drops the stacks that have not
 * been seen for longest. Nobody has to empty the maps.
 *
 * An ID is 1 or more for a stack and, read as a signed number, a negative
 * errno for none. -EFAULT means that there are no frames to be had, as in the
 * kernel stack of a thread that was in user mode; it has an entry of its own,
 * an empty stack, or Inspektor Gadget would warn of a lost stack at each such
 * row. Any other errno is a stack that was lost.
 */
#ifndef STACK_MAPS_H
#define STACK_MAPS_H

#include <vmlinux.h>
#include <asm-generic/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <gadget/types.h>
#include <gadget/macros.h>
#include <gadget/fnv1a.h>

/* Fixed by Inspektor Gadget: it reads arrays of this many addresses. */
#define STACK_DEPTH 127

typedef __u64 stack_frames[STACK_DEPTH];

/*
 * --stack-entries and --kernel-stack-entries, see gadget.yaml. Inspektor Gadget
 * sizes a map by the variable that is called after it.
 */
const volatile int ig_ustack_max_entries = 16384;
GADGET_PARAM(ig_ustack_max_entries);

const volatile int ig_kstack_max_entries = 8192;
GADGET_PARAM(ig_kstack_max_entries);

/* --collect-ustack, on unless switched off: Inspektor Gadget knows the name. */
const volatile bool collect_ustack = true;
GADGET_PARAM(collect_ustack);

/* --collect-build-id: Inspektor Gadget knows the name. */
const volatile bool collect_build_id = false;
GADGET_PARAM(collect_build_id);

const volatile int ig_build_id_max_entries = 1024;
GADGET_PARAM(ig_build_id_max_entries);

/*
 * --format-stacks: Inspektor Gadget turns the stacks of each row into text,
 * which costs more than all the rest of a run. Without it a row has the IDs in
 * the types below, which only otel-profiles reads, once per distinct stack.
 */
const volatile bool format_stacks = true;
GADGET_PARAM(format_stacks);

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

/* One entry per user stack, under the same ID. */
typedef struct bpf_stack_build_id stack_build_ids[STACK_DEPTH];

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 0); /* ig_build_id_max_entries */
	__type(key, __u32);
	__type(value, stack_build_ids);
} ig_build_id SEC(".maps");

/*
 * A stack is 1 kB, its build IDs are 4 kB: too much for the BPF stack. The
 * programs that use these run with preemption off and do not nest on a CPU.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, stack_frames);
} scratch_frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, stack_build_ids);
} scratch_build_ids SEC(".maps");

/* Hashes up to the first empty address. The seed sets address spaces apart. */
static __always_inline __u32 stack_hash(const stack_frames frames, __u64 seed)
{
	__u64 h = seed;

	for (int i = 0; i < STACK_DEPTH; i++) {
		if (!frames[i])
			break;
		h = (h ^ frames[i]) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 32;
	}
	h &= 0x7fffffff;
	return h ? h : 1;
}

/* Keeps a stack under its ID and returns it. The look-up marks it as used. */
static __always_inline __u32 keep_frames(void *map, __u32 id,
					 const stack_frames *frames)
{
	long ret;

	if (bpf_map_lookup_elem(map, &id))
		return id;
	ret = bpf_map_update_elem(map, &id, frames, BPF_NOEXIST);
	if (ret < 0 && ret != -EEXIST)
		return ret;
	return id;
}

static __always_inline __u32 no_stack_id(void *map)
{
	static const stack_frames none;

	return keep_frames(map, -EFAULT, &none);
}

/*
 * Takes the current stack, keeps it in map and returns its ID. flags are those
 * of bpf_get_stack: BPF_F_USER_STACK, and in the low byte the number of
 * innermost frames to leave out.
 */
static __always_inline __u32 keep_stack(void *ctx, void *map, __u64 flags,
					__u64 seed)
{
	__u32 zero = 0;
	long ret;

	stack_frames *frames = bpf_map_lookup_elem(&scratch_frames, &zero);
	if (!frames)
		return -ENOENT;

	ret = bpf_get_stack(ctx, frames, sizeof(*frames), flags);
	if (!ret || ret == -EFAULT)
		return no_stack_id(map);
	if (ret < 0)
		return ret;
	return keep_frames(map, stack_hash(*frames, seed), frames);
}

static __always_inline __u32 kernel_stack_id(void *ctx, __u64 skip)
{
	return keep_stack(ctx, &ig_kstack, skip, 0);
}

/* How many frames the tracing may put between a stack and its reader. */
#define TRACING_DEPTH 16

/*
 * Room for a stack with the tracing's frames, out of which it is copied.
 */
typedef __u64 deep_stack_frames[STACK_DEPTH + TRACING_DEPTH];

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, deep_stack_frames);
} scratch_deep_frames SEC(".maps");

/*
 * Like kernel_stack_id, for programs that hang on a tracepoint or a function.
 * The stack begins with the first address within [start, end), and what is
 * nearer to the leaf is left out: the frames of the tracing, whose number
 * depends on the kernel and on who else traces. If there is no such address,
 * the stack is kept as it is.
 */
static __always_inline __u32 kernel_stack_id_from(void *ctx, __u64 start,
						  __u64 end)
{
	__u32 zero = 0, skip = 0;
	deep_stack_frames *deep;
	stack_frames *frames;
	long ret;

	deep = bpf_map_lookup_elem(&scratch_deep_frames, &zero);
	frames = bpf_map_lookup_elem(&scratch_frames, &zero);
	if (!deep || !frames)
		return -ENOENT;

	ret = bpf_get_stack(ctx, deep, sizeof(*deep), 0);
	if (!ret || ret == -EFAULT)
		return no_stack_id(&ig_kstack);
	if (ret < 0)
		return ret;
	for (int i = 0; i < TRACING_DEPTH; i++) {
		if ((*deep)[i] >= start && (*deep)[i] < end) {
			skip = i;
			break;
		}
	}
	ret = bpf_probe_read_kernel(frames, sizeof(*frames), &(*deep)[skip]);
	if (ret < 0)
		return ret;
	return keep_frames(&ig_kstack, stack_hash(*frames, 0), frames);
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
		ustack->mtime_sec = BPF_CORE_READ(split, i_mtime_sec);
		ustack->mtime_nsec = BPF_CORE_READ(split, i_mtime_nsec);
	} else if (bpf_core_field_exists(renamed->__i_mtime)) {
		ustack->mtime_sec = BPF_CORE_READ(renamed, __i_mtime.tv_sec);
		ustack->mtime_nsec = BPF_CORE_READ(renamed, __i_mtime.tv_nsec);
	} else if (bpf_core_field_exists(plain->i_mtime)) {
		ustack->mtime_sec = BPF_CORE_READ(plain, i_mtime.tv_sec);
		ustack->mtime_nsec = BPF_CORE_READ(plain, i_mtime.tv_nsec);
	}
}

static __always_inline void keep_build_ids(void *ctx, __u32 id)
{
	__u32 zero = 0;

	if (bpf_map_lookup_elem(&ig_build_id, &id))
		return;
	stack_build_ids *ids = bpf_map_lookup_elem(&scratch_build_ids, &zero);
	if (!ids)
		return;
	if (bpf_get_stack(ctx, ids, sizeof(*ids),
			  BPF_F_USER_STACK | BPF_F_USER_BUILD_ID) > 0)
		bpf_map_update_elem(&ig_build_id, &id, ids, BPF_ANY);
}

/*
 * Fills what Inspektor Gadget needs to resolve the current user stack: its ID
 * and the executable and process to look the symbols up in. All of it stays
 * zero with --collect-ustack=false and for threads without user memory, which
 * Inspektor Gadget reads as "no user stack".
 *
 * boot_timestamp differs each time, and so does the thread's ID between the
 * threads of a process: a map that aggregates keeps this struct in the value
 * and only its stack_id in the key.
 */
static __always_inline void fill_user_stack(void *ctx,
					    struct gadget_user_stack *ustack)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct mm_struct *mm;
	struct inode *inode;
	struct pid *pid;
	struct upid *upid;
	dev_t dev;

	__builtin_memset(ustack, 0, sizeof(*ustack));
	if (!collect_ustack)
		return;
	mm = BPF_CORE_READ(task, mm);
	if (!mm)
		return;

	/* The same addresses in two programs are two stacks. */
	ustack->base_addr_hash = fnv_32a_init();
	fnv_32a_update_u64(&ustack->base_addr_hash, (__u64)mm);
	fnv_32a_update_u64(&ustack->base_addr_hash,
			   BPF_CORE_READ(mm, start_code));
	fnv_32a_update_u64(&ustack->base_addr_hash,
			   BPF_CORE_READ(mm, start_stack));
	ustack->stack_id = keep_stack(ctx, &ig_ustack, BPF_F_USER_STACK,
				      ustack->base_addr_hash);
	ustack->boot_timestamp = bpf_ktime_get_boot_ns();

	inode = BPF_CORE_READ(mm, exe_file, f_inode);
	dev = BPF_CORE_READ(inode, i_sb, s_dev);
	ustack->major = dev >> 20;
	ustack->minor = dev & ((1u << 20) - 1);
	ustack->inode = BPF_CORE_READ(inode, i_ino);
	fill_mtime(ustack, inode);

	pid = BPF_CORE_READ(task, thread_pid);
	upid = (void *)&pid->numbers;
	ustack->tgid_level0 = BPF_CORE_READ(task, tgid);
	ustack->pid_level0 = BPF_CORE_READ(upid, nr);
	ustack->pidns_level0 = BPF_CORE_READ(upid, ns, ns.inum);
	if (BPF_CORE_READ(pid, level) > 0) {
		upid++;
		ustack->pid_level1 = BPF_CORE_READ(upid, nr);
		ustack->pidns_level1 = BPF_CORE_READ(upid, ns, ns.inum);
	}

	if (collect_build_id && (__s32)ustack->stack_id > 0)
		keep_build_ids(ctx, ustack->stack_id);
}

/* Puts the ID of a kernel stack where format_stacks wants it. */
static __always_inline void put_kernel_stack(__u32 id, gadget_kernel_stack *raw,
					     profiles_kernel_stack *by_id)
{
	*raw = format_stacks ? id : no_stack_id(&ig_kstack);
	*by_id = format_stacks ? 0 : id;
}

/* fill_user_stack for a row with both types. Returns the stack's ID. */
static __always_inline __u32
put_user_stack(void *ctx, struct gadget_user_stack *raw,
	       struct profiles_user_stack *by_id)
{
	__builtin_memset(raw, 0, sizeof(*raw));
	__builtin_memset(by_id, 0, sizeof(*by_id));
	if (!format_stacks)
		raw = (struct gadget_user_stack *)by_id;
	fill_user_stack(ctx, raw);
	return raw->stack_id;
}

#endif /* STACK_MAPS_H */
