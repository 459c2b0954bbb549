/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copies of user stacks, for gadgets whose events are sampled and rare enough: a
 * capture is the registers of the current thread and the top of its stack. The
 * operator captures walks it by the unwind rules of the files, so that the stacks
 * of programs without frame pointers are whole, and puts the row that came with
 * it into the map rows.
 *
 * A gadget declares what it sends, a key and a value of its map rows between the
 * head and the copy, both without gaps and multiples of 8 bytes long:
 *
 *	struct my_capture {
 *		struct profiles_capture head;
 *		struct my_key key;
 *		struct my_value value;
 *		profiles_stack_copy stack;
 *	};
 *
 * and asks for the operator in its gadget.yaml. In a program:
 *
 *	weight = draw(amount);			how much the event stands for, 0: nothing
 *	capture = bpf_ringbuf_reserve(&captures, sizeof(*capture), 0);
 *	begin_capture(&capture->head);		fill key and value
 *	describe_user_stack(&capture->value.user_stack_raw, &...user_stack_id);
 *	copy_user_stack(&capture->head, capture->stack, regs);
 *	submit_capture(capture);
 */
#ifndef CAPTURE_H
#define CAPTURE_H

#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <gadget/macros.h>

#include "stack_maps.h"

#define CAPTURE_PAGE 4096
/* How much of a stack is copied: this much, or up to a page more. */
#define CAPTURE_STACK (4 * CAPTURE_PAGE)

/*
 * The copy begins this much below the stack pointer. Functions may use that much there,
 * and the unwind rules of a function's last instructions still name it.
 */
#define CAPTURE_BELOW 128

typedef __u8 profiles_stack_copy[CAPTURE_STACK + CAPTURE_PAGE];

/* By their numbers in DWARF: 0 to 16 on x86, 0 to 32 on arm64. */
#define CAPTURE_REGISTERS 33

/* The thread is at the first instruction of a function: it needs no rules to find the caller. */
#define CAPTURE_ENTRY (1ull << 63)

struct profiles_capture {
	__u64 time; /* bpf_ktime_get_boot_ns */
	__u64 id; /* never 0, and never that of another one */
	__u64 known; /* bit n: registers[n] is known; and CAPTURE_ENTRY */
	__u64 registers[CAPTURE_REGISTERS];
	__u32 copied; /* bytes of the stack, 0: the thread has none */
	__u32 stretch; /* capture_settings.stretch of its time */
};

/* Some 780 captures. */
#define CAPTURES_BYTES (16 * 1024 * 1024)

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, CAPTURES_BYTES);
} captures SEC(".maps");

/*
 * User space reads them several times a second. It is woken only where so many have come
 * in the meantime: at each of them that would cost the thread more than all the rest.
 */
static __always_inline void submit_capture(void *capture)
{
	bool many = bpf_ringbuf_query(&captures, BPF_RB_AVAIL_DATA) >
		    CAPTURES_BYTES / 4;

	bpf_ringbuf_submit(capture,
			   many ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

/* What the operator tells the programs. */
struct capture_settings {
	__u64 step; /* see draw; 0: as the gadget's parameter says */
	__u32 stretch; /* a number that captures carry */
	__u32 closed; /* not 0: nothing is drawn */
};

/* The settings of all, and of what is drawn all the time while the others have stretches. */
#define SETTINGS_OF_ALL 0
#define SETTINGS_ALWAYS 1

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct capture_settings);
} capture_settings SEC(".maps");

/* What the programs tell the operator, per CPU. */
struct capture_counts {
	__u64 events; /* that draw was asked for */
	__u64 lost; /* captures that found no room, and what they stood for */
	__u64 lost_weight;
	__u64 lost_events;
	__u64 full; /* for the gadget's own use: what found no room elsewhere */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct capture_counts);
} capture_counts SEC(".maps");

static __always_inline void count_event(void)
{
	__u32 zero = 0;
	struct capture_counts *counts =
		bpf_map_lookup_elem(&capture_counts, &zero);

	if (counts)
		counts->events++;
}

static __always_inline void count_lost(__u64 weight, __u64 events)
{
	__u32 zero = 0;
	struct capture_counts *counts =
		bpf_map_lookup_elem(&capture_counts, &zero);

	if (!counts)
		return;
	counts->lost++;
	counts->lost_weight += weight;
	counts->lost_events += events;
}

static __always_inline void count_full(void)
{
	__u32 zero = 0;
	struct capture_counts *counts =
		bpf_map_lookup_elem(&capture_counts, &zero);

	if (counts)
		counts->full++;
}

/*
 * Draws events by their amount, be it bytes or nanoseconds: one of step or more always,
 * a smaller one with a chance of amount/step, and then it stands for step. So
 * the sum of what is returned is right in the mean, whatever the sizes are, and
 * there are no more captures than the sum has steps. The step is the one of the
 * operator, or the gadget's. Returns 0 for an event that is not drawn.
 */
static __always_inline __u64 draw_by(__u32 settings, __u64 amount, __u64 step)
{
	struct capture_settings *control =
		bpf_map_lookup_elem(&capture_settings, &settings);

	if (!control || control->closed)
		return 0;
	if (control->step)
		step = control->step;
	if (step > 0xffffffff)
		step = 0xffffffff;
	if (amount >= step)
		return amount;
	if ((bpf_get_prandom_u32() * step) >> 32 < amount)
		return step;
	return 0;
}

static __always_inline __u64 draw(__u64 amount, __u64 step)
{
	return draw_by(SETTINGS_OF_ALL, amount, step);
}

/*
 * How many events of amount one stands for that draw has returned weight for.
 * What is left of the division is rounded at random, so that the sum is right.
 */
static __always_inline __u64 drawn_events(__u64 amount, __u64 weight)
{
	__u64 events, rest;

	if (!amount)
		amount = 1;
	events = weight / amount;
	rest = weight % amount;
	if ((__u64)bpf_get_prandom_u32() % amount < rest)
		events++;
	return events;
}

static __always_inline void begin_capture_by(__u32 settings,
					     struct profiles_capture *head)
{
	struct capture_settings *control =
		bpf_map_lookup_elem(&capture_settings, &settings);
	__u64 now = bpf_ktime_get_boot_ns();

	head->time = now;
	/* Two CPUs can have one time, and a CPU none twice. */
	head->id = now << 12 | (bpf_get_smp_processor_id() & 0xfff);
	head->known = 0;
	head->copied = 0;
	head->stretch = control ? control->stretch : 0;
}

static __always_inline void begin_capture(struct profiles_capture *head)
{
	begin_capture_by(SETTINGS_OF_ALL, head);
}

/* Fills in what is known of the user stack but its ID, which the operator sets. */
static __always_inline void
describe_user_stack(struct gadget_user_stack *raw,
		    struct profiles_user_stack *by_id)
{
	struct gadget_user_stack *ustack = user_stack_form(raw, by_id);

	fill_process_of(bpf_get_current_task_btf(), ustack);
	ustack->stack_id = -EFAULT;
}

/*
 * Copies up to the end of the memory there, page by page: a stack can end anywhere. What
 * is below the stack pointer can be on a page that was never used: those bytes are zeros
 * then, which is what the helper leaves behind where it fails.
 */
static __always_inline __u32 copy_stack(__u8 *to, __u64 sp)
{
	__u64 from = sp - CAPTURE_BELOW;
	__u32 done = 0, n;

	for (int i = 0; i <= CAPTURE_STACK / CAPTURE_PAGE; i++) {
		if (done >= CAPTURE_STACK)
			break;
		n = CAPTURE_PAGE - ((from + done) & (CAPTURE_PAGE - 1));
		if (bpf_probe_read_user(to + done, n & (2 * CAPTURE_PAGE - 1),
					(void *)(from + done)) &&
		    (i || n > CAPTURE_BELOW))
			break;
		done += n;
	}
	return done > CAPTURE_BELOW ? done : 0;
}

static __always_inline void set_register(struct profiles_capture *head, int n,
					 __u64 value)
{
	head->registers[n] = value;
	head->known |= 1ull << n;
}

/* regs are those of the current thread in user mode. */
static __always_inline void copy_user_stack(struct profiles_capture *head,
					    __u8 *stack,
					    const struct pt_regs *regs)
{
	if (!collect_ustack || !bpf_get_current_task_btf()->mm)
		return;
#if defined(__TARGET_ARCH_x86)
	set_register(head, 3, BPF_CORE_READ(regs, bx));
	set_register(head, 6, BPF_CORE_READ(regs, bp));
	set_register(head, 7, BPF_CORE_READ(regs, sp));
	set_register(head, 12, BPF_CORE_READ(regs, r12));
	set_register(head, 13, BPF_CORE_READ(regs, r13));
	set_register(head, 14, BPF_CORE_READ(regs, r14));
	set_register(head, 15, BPF_CORE_READ(regs, r15));
	set_register(head, 16, BPF_CORE_READ(regs, ip));
	head->copied = copy_stack(stack, head->registers[7]);
#elif defined(__TARGET_ARCH_arm64)
	const struct user_pt_regs *user = (const void *)regs;

	for (int i = 19; i < 31; i++)
		set_register(head, i, BPF_CORE_READ(user, regs[i]));
	set_register(head, 31, BPF_CORE_READ(user, sp));
	set_register(head, 32, BPF_CORE_READ(user, pc));
	head->copied = copy_stack(stack, head->registers[31]);
#else
#error "unknown architecture"
#endif
}

#endif /* CAPTURE_H */
