// SPDX-License-Identifier: GPL-2.0
// The ways into the eBPF profiler's unwinders for programs of gadgets: one entry for each type of program, which a gadget's program
// tail-calls from a function of its own. The chain ends, and control comes back to that function. Compiled with the profiler's headers by
// "make unwinder-bpf".
#include "bpfdefs.h"
#include "tracemgmt.h"
#include "types.h"
#include "unwind_slot.h"

// The profiler's maps and variables that its headers refer to. The loader puts the profiler's own in their place: only name and
// type count.
#define TRACER_MAP(name, kind, k, v)                                                                                                       \
  struct name##_t {                                                                                                                        \
    __uint(type, kind);                                                                                                                    \
    __type(key, k);                                                                                                                        \
    __type(value, v);                                                                                                                      \
    __uint(max_entries, 1);                                                                                                                \
  } name SEC(".maps");
TRACER_MAP(per_cpu_records, BPF_MAP_TYPE_PERCPU_ARRAY, int, PerCPURecord)
TRACER_MAP(metrics, BPF_MAP_TYPE_PERCPU_ARRAY, u32, u64)
TRACER_MAP(perf_progs, BPF_MAP_TYPE_PROG_ARRAY, u32, u32)
TRACER_MAP(report_events, BPF_MAP_TYPE_PERF_EVENT_ARRAY, int, u32)
TRACER_MAP(reported_pids, BPF_MAP_TYPE_LRU_HASH, u32, u64)
TRACER_MAP(pid_events, BPF_MAP_TYPE_HASH, u64, bool)
TRACER_MAP(inhibit_events, BPF_MAP_TYPE_HASH, u32, bool)
TRACER_MAP(go_procs, BPF_MAP_TYPE_HASH, u32, GoRuntimeOffsets)
TRACER_MAP(interpreter_offsets, BPF_MAP_TYPE_HASH, u64, OffsetRange)

struct pid_page_to_mapping_info_t {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __type(key, PIDPage);
  __type(value, PIDPageMappingInfo);
  __uint(max_entries, 1);
  __uint(map_flags, BPF_F_NO_PREALLOC);
} pid_page_to_mapping_info SEC(".maps");

BPF_RODATA_VAR(u32, with_debug_output, 0)
BPF_RODATA_VAR(u64, filter_min_process_age_ns, 0)
BPF_RODATA_VAR(u64, inverse_pac_mask, 0)
BPF_RODATA_VAR(bool, vma_lookup_enabled, false)
BPF_RODATA_VAR(u32, vma_vm_file_offset, 0)
BPF_RODATA_VAR(u32, vma_vm_flags_offset, 0)
BPF_RODATA_VAR(u64, tpbase_offset, 0)
BPF_RODATA_VAR(u32, task_group_leader_offset, 0)
BPF_RODATA_VAR(u32, task_stack_offset, 0)
BPF_RODATA_VAR(u32, task_start_time_offset, 0)
BPF_RODATA_VAR(u32, stack_ptregs_offset, 0)
BPF_RODATA_VAR(bool, pid_ns_translation_enabled, false)
BPF_RODATA_VAR(u64, target_pid_ns_inode, 0)
BPF_RODATA_VAR(u64, target_pid_ns_dev, 0)

// The profiler recognizes events of gadgets by this value. The loader sets it.
BPF_RODATA_VAR(u16, gadgets_origin, 0)

// ig's map, which it hands over when it starts this process.
struct slots_t {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __type(key, u32);
  __type(value, struct unwind_slot);
  __uint(max_entries, UNWIND_CHAINS);
} slots SEC(".maps");

// How many events of a CPU are in a chain, which has one record for all of them. A program on a uprobe can lose the CPU to a thread that
// meets another one: the first has the chain until it returns. Kept here, it covers programs of gadgets that know nothing of it.
struct guards_t {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __type(key, u32);
  __type(value, u64);
  __uint(max_entries, UNWIND_CHAINS);
} guards SEC(".maps");

// The maps of Inspektor Gadget's own gadgets. They are ig's, too.
struct otel_t {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __type(key, u32);
  __type(value, struct unwind_otel);
  __uint(max_entries, UNWIND_CHAINS);
} otel SEC(".maps");

struct otel_ids_t {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __type(key, u32);
  __type(value, u64);
  __uint(max_entries, 1);
} otel_ids SEC(".maps");

// The profiler's headers lack it.
static u64 (*bpf_ktime_get_boot_ns)(void) = (void *)BPF_FUNC_ktime_get_boot_ns;

// It is a function that is not inlined: where the chain ends, control comes back to its caller. A positive result means that there was no
// chain: it ends with the unwinder's process, while this program lives on with the gadget that calls it. Unwinders return 0 or -1.
// The result is read from a map, where the caller's guard is at least 1. The verifier of Linux 6.1 does not know that a tail
// call can return another value: it takes a constant for the only result, and removes what the caller does with any other.
static __attribute__((noinline)) int walk(void *ctx, int unwinder, u64 *guard)
{
  tail_call(ctx, unwinder);
  return *(volatile u64 *)guard;
}

// registers finds where the thread was in user mode. A tracepoint's context has no registers: they are where the kernel has put them on
// its way in. It is not inlined: the stack of what calls walk is bounded.
static __attribute__((noinline)) ErrorCode registers(void *ctx, u32 chain, UnwindState *state, bool *usermode)
{
  if (chain != UNWIND_RAW_TP && chain != UNWIND_TRACEPOINT)
    return get_usermode_regs(ctx, state, usermode);
  struct pt_regs regs;
  long at = get_task_pt_regs((struct task_struct *)bpf_get_current_task());
  if (!at || bpf_probe_read_kernel(&regs, sizeof(regs), (void *)at)) {
    increment_metric(metricID_UnwindNativeErrReadKernelModeRegs);
    return ERR_NATIVE_READ_KERNELMODE_REGS;
  }
  if (!ptregs_is_usermode(&regs))
    return ERR_OK;
  *usermode = true;
  return copy_state_regs(state, &regs, true);
}

// leave goes from a function's first instructions to its caller, which needs no unwind rules: some C libraries have none in their files.
static inline EBPF_INLINE ErrorCode leave(PerCPURecord *record, int *unwinder)
{
  UnwindState *state = &record->state;
  u64 *data          = push_frame(state, &record->trace, FRAME_MARKER_NATIVE, 0, state->text_section_offset, 1);
  if (!data)
    return ERR_STACK_LENGTH_EXCEEDED;
  data[0] = state->text_section_id;
#if defined(__x86_64__)
  if (bpf_probe_read_user(&state->pc, sizeof(state->pc), (void *)state->sp))
    return ERR_NATIVE_PC_READ;
  state->sp += sizeof(state->pc);
#else
  state->pc = state->lr;
#endif
  unwinder_mark_nonleaf_frame(state);
  return get_next_unwinder_after_native_frame(record, unwinder);
}

// unwind takes the current thread's stack under an ID, and returns the result.
static inline EBPF_INLINE enum unwind_result unwind(void *ctx, u32 chain, u64 id, u64 flags, u64 *guard)
{
  u32 pid = 0, tid = 0;
  if (!gadgets_origin || !get_pid_tgid(&pid, &tid) || !pid)
    return UNWIND_NO_CHAIN;
  PerCPURecord *record = get_pristine_per_cpu_record();
  if (!record)
    return UNWIND_NO_CHAIN;

  int unwinder    = PROG_UNWIND_STOP;
  bool usermode   = false; // the kernel's own threads have none
  ErrorCode error = registers(ctx, chain, &record->state, &usermode);
  if (!error && usermode) {
    PIDPageMappingInfo *mappings = pid_information(pid);
    if (!mappings) {
      if (report_pid(ctx, (u64)pid << 32 | tid, RATELIMIT_ACTION_DEFAULT))
        increment_metric(metricID_NumProcNew);
      return UNWIND_UNKNOWN_PROCESS;
    }
    record->usesAnonymousMappings = pid_uses_anonymous_mappings(mappings);
  }

  Trace *trace  = &record->trace;
  trace->origin = gadgets_origin;
  trace->pid    = pid;
  trace->tid    = tid;
  trace->ktime  = bpf_ktime_get_ns();
  trace->value  = id;
  bpf_get_current_comm(&trace->comm, sizeof(trace->comm));
  if (!(flags & UNWIND_NO_KERNEL))
    push_kernel_frames(ctx, trace);
  GoRuntimeOffsets *go = bpf_map_lookup_elem(&go_procs, &pid);
  if (go)
    record->goOffsets = *go;
  if (!error && usermode)
    error = get_next_unwinder_after_native_frame(record, &unwinder);
  if (!error && flags & UNWIND_AT_ENTRY && unwinder == PROG_UNWIND_NATIVE)
    error = leave(record, &unwinder);
  record->state.unwind_error = error;
  return walk(ctx, unwinder, guard) > 0 ? UNWIND_NO_CHAIN : UNWIND_DONE;
}

// enter takes the chain for itself. Every supported kernel has an atomic addition without a result.
static inline EBPF_INLINE int enter(void *ctx, u32 chain)
{
  u32 key                  = chain;
  struct unwind_slot *slot = bpf_map_lookup_elem(&slots, &key);
  u64 *guard               = bpf_map_lookup_elem(&guards, &key);
  if (!slot || !guard)
    return 0;
  __sync_fetch_and_add(guard, 1);
  if (*(volatile u64 *)guard == 1)
    slot->result = unwind(ctx, chain, slot->id, slot->flags, guard);
  else
    slot->result = UNWIND_BUSY;
  __sync_fetch_and_add(guard, -1);
  return 0;
}

// enter_otel is enter for programs of Inspektor Gadget's own gadgets, which have no slot. The kernel's frames are in their rows.
static inline EBPF_INLINE int enter_otel(void *ctx, u32 chain)
{
  u32 key                   = chain, zero = 0;
  struct unwind_otel *state = bpf_map_lookup_elem(&otel, &key);
  u64 *guard                = bpf_map_lookup_elem(&guards, &key);
  u64 *given                = bpf_map_lookup_elem(&otel_ids, &zero);
  if (!state || !guard || !given)
    return 0;
  u64 id = 0, result = UNWIND_BUSY;
  __sync_fetch_and_add(guard, 1);
  if (*(volatile u64 *)guard == 1) {
    u64 now = bpf_ktime_get_boot_ns();
    if (state->second != now / 1000000000) {
      state->second = now / 1000000000;
      state->taken  = 0;
    }
    result = UNWIND_OVER_BUDGET;
    if (state->taken < UNWIND_OTEL_BUDGET) {
      state->taken++;
      id = (u64)UNWIND_OTEL_RUN << UNWIND_RUN_SHIFT | (now >> 10 & UNWIND_SEQ_MASK) << UNWIND_SEQ_SHIFT |
           (u64)bpf_get_smp_processor_id() << UNWIND_CPU_SHIFT | chain;
      result = unwind(ctx, chain, id, UNWIND_NO_KERNEL, guard);
    }
  }
  __sync_fetch_and_add(guard, -1);
  if (result < UNWIND_RESULTS)
    __sync_fetch_and_add(&state->results[result], 1);
  *(volatile u64 *)given = result == UNWIND_DONE ? id : 0;
  return 0;
}

SEC("kprobe/otel_entry")
int otel_kprobe(struct pt_regs *ctx)
{
  return enter_otel(ctx, UNWIND_KPROBE);
}

SEC("perf_event/otel_entry")
int otel_perf(struct pt_regs *ctx)
{
  return enter_otel(ctx, UNWIND_PERF);
}

SEC("kprobe/gadget_entry")
int gadget_kprobe(struct pt_regs *ctx)
{
  return enter(ctx, UNWIND_KPROBE);
}

SEC("raw_tracepoint/gadget_entry")
int gadget_raw_tp(void *ctx)
{
  return enter(ctx, UNWIND_RAW_TP);
}

SEC("tracepoint/gadget_entry")
int gadget_tracepoint(void *ctx)
{
  return enter(ctx, UNWIND_TRACEPOINT);
}

SEC("perf_event/gadget_entry")
int gadget_perf(struct pt_regs *ctx)
{
  return enter(ctx, UNWIND_PERF);
}

// process_exec reports a process that executes another program. Otherwise, the profiler continues to use the mappings of the previous
// program at addresses that both programs use. If a process executes several programs in a few seconds, the profiler can read the
// later ones up to 5 s late.
SEC("raw_tracepoint/sched_process_exec")
int process_exec(void *ctx)
{
  u32 pid = 0, tid = 0;
  if (get_pid_tgid(&pid, &tid) && pid_information_exists(pid))
    report_pid(ctx, (u64)pid << 32 | tid, RATELIMIT_ACTION_PRIORITY);
  return 0;
}

// The parts of the kernel's structs that lead from a task to its mount namespace. The loader adapts the offsets to the kernel.
struct ns_common {
  unsigned int inum;
} __attribute__((preserve_access_index));

struct mnt_namespace {
  struct ns_common ns;
} __attribute__((preserve_access_index));

struct nsproxy {
  struct mnt_namespace *mnt_ns;
} __attribute__((preserve_access_index));

struct task_struct {
  u64 start_boottime;
  struct nsproxy *nsproxy;
} __attribute__((preserve_access_index));

// The last process of each PID that has exited, for exits.go.
struct exit {
  u64 start; // since boot
  u64 ended; // on the clock of samples
  u64 mntns;
};

struct exits_t {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __type(key, u32);
  __type(value, struct exit);
  __uint(max_entries, 8192);
} exits SEC(".maps");

// process_exit records a process when its first thread exits. After a nil pointer, reads fail and leave zeros.
SEC("raw_tracepoint/sched_process_exit")
int process_exit(void **ctx)
{
  u64 id  = bpf_get_current_pid_tgid();
  u32 pid = id >> 32;
  if (pid != (u32)id)
    return 0;
  struct task_struct *task   = ctx[0];
  struct nsproxy *namespaces = NULL;
  struct mnt_namespace *mnt  = NULL;
  struct exit e              = {.ended = bpf_ktime_get_ns()};
  bpf_probe_read_kernel(&e.start, sizeof(e.start), &task->start_boottime);
  bpf_probe_read_kernel(&namespaces, sizeof(namespaces), &task->nsproxy);
  bpf_probe_read_kernel(&mnt, sizeof(mnt), &namespaces->mnt_ns);
  if (!mnt)
    return 0;
  bpf_probe_read_kernel(&e.mntns, sizeof(mnt->ns.inum), &mnt->ns.inum);
  bpf_map_update_elem(&exits, &pid, &e, BPF_ANY);
  return 0;
}

char _license[] SEC("license") = "GPL";
