/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The memory that a gadget's program shares with the program unwinder's entry
 * programs (cmd/unwinder/bpf): one slot for each CPU and chain. ig owns the map. It
 * outlives every run of the unwinder, and all gadgets of one ig use the same.
 *
 * Plain C without kernel types: both sides compile it with headers of their own.
 */
#ifndef UNWIND_SLOT_H
#define UNWIND_SLOT_H

/*
 * The chains of unwinders: one for each type of program, as a tail call only leads
 * to programs of its own type.
 */
enum unwind_chain {
	UNWIND_KPROBE, /* kprobes and uprobes */
	UNWIND_RAW_TP, /* raw_tp, and not tp_btf */
	UNWIND_PERF, /* perf_event */
	UNWIND_TRACEPOINT, /* tracepoint */
	UNWIND_CHAINS,
};

/* The result of a call. The numbers are part of the protocol: package wire has them, too. */
enum unwind_result {
	UNWIND_NO_CHAIN, /* the unwinder does not run, or has just ended */
	UNWIND_DONE, /* the stack comes under the slot's ID */
	UNWIND_UNKNOWN_PROCESS, /* the unwinder is about to read its files */
	UNWIND_BUSY, /* another event of this CPU has the chain */
	UNWIND_NO_ROOM, /* the gadget's buffer of rows is full */
	UNWIND_OVER_BUDGET, /* the limit of stacks for this second is reached */
	UNWIND_RESULTS,
};

/* A program's flags for its event, each a bit. */
#define UNWIND_AT_ENTRY 1 /* the thread is at a function's first instructions, which have not touched its stack */
#define UNWIND_NO_KERNEL 2 /* the kernel's frames are not wanted */

struct unwind_slot {
	unsigned long long busy; /* the number of gadget programs that request it: the first one gets it */
	unsigned long long seq; /* of the last ID */
	unsigned long long id;
	unsigned long long result; /* enum unwind_result */
	unsigned long long flags;
};

/*
 * Inspektor Gadget's own gadgets do not use slots. They call an entry of their own. It
 * numbers their events, and leaves the ID, or 0, where Inspektor Gadget's headers read it.
 * The number is the time since boot in units of 1024 ns. So an ID that was left for another
 * event is recognized. ig owns this map, too. The results are by enum unwind_result.
 */
struct unwind_otel {
	unsigned long long second; /* since boot, that taken counts in */
	unsigned long long taken;
	unsigned long long results[UNWIND_RESULTS];
};

/* The maximum number of their stacks per CPU, second and chain. */
#define UNWIND_OTEL_BUDGET 1000

/*
 * An ID is unique among all events of an ig: the number of the gadget's run, a number
 * that counts up, the CPU and the chain.
 */
#define UNWIND_RUN_SHIFT 54
#define UNWIND_OTEL_RUN 1023 /* the number of all runs of Inspektor Gadget's own gadgets */
#define UNWIND_SEQ_SHIFT 16
#define UNWIND_CPU_SHIFT 2
#define UNWIND_SEQ_MASK ((1ull << (UNWIND_RUN_SHIFT - UNWIND_SEQ_SHIFT)) - 1)

#endif /* UNWIND_SLOT_H */
