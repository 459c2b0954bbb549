package main

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

// maxExits is the number of exited processes that are remembered.
const maxExits = 8192

// exits records the start time and mount namespace of each process that exits. The process's samples can be read later, when
// /proc no longer lists the process.
type exits struct {
	m    *ebpf.Map
	prog *ebpf.Program
	link link.Link
}

// exit describes an exited process. It is a value in exits.m.
type exit struct {
	Start uint64 // time since boot
	Ended uint64 // exit time, on the clock of samples
	MntNS uint64
}

// watchExits starts the recording. It generates a small eBPF program from the kernel's type information.
func watchExits() (e *exits, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("reading the kernel's type information: %w", err)
	}
	var o offsets
	if err := o.find(kernel); err != nil {
		return nil, err
	}
	e = &exits{}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.m, err = ebpf.NewMap(&ebpf.MapSpec{Name: "unwinder_exits", Type: ebpf.LRUHash, KeySize: 4, ValueSize: 24, MaxEntries: maxExits}); err != nil {
		return e, fmt.Errorf("creating the map for exited processes: %w", err)
	}
	if e.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "unwinder_exits", Type: ebpf.RawTracepoint, License: "GPL", Instructions: o.program(e.m),
	}); err != nil {
		return e, fmt.Errorf("loading the program for process exits: %w", err)
	}
	if e.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exit", Program: e.prog}); err != nil {
		return e, fmt.Errorf("attaching to sched_process_exit: %w", err)
	}
	return e, nil
}

// offsets holds the offsets of the members that lead from a task to the recorded values.
type offsets struct{ leader, start, nsproxy, mntns, inum uint32 }

func (o *offsets) find(kernel *btf.Spec) error {
	for _, f := range []struct {
		dst  *uint32
		typ  string
		path []string
	}{
		{&o.leader, "task_struct", []string{"group_leader"}},
		{&o.start, "task_struct", []string{"start_boottime", "real_start_time"}}, // kernels before 5.5 use the second name
		{&o.nsproxy, "task_struct", []string{"nsproxy"}},
		{&o.mntns, "nsproxy", []string{"mnt_ns"}},
	} {
		off, _, err := member(kernel, f.typ, f.path...)
		if err != nil {
			return err
		}
		*f.dst = off
	}
	ns, t, err := member(kernel, "mnt_namespace", "ns")
	if err != nil {
		return err
	}
	common, ok := btf.As[*btf.Struct](t)
	if !ok {
		return errors.New("the kernel's mnt_namespace.ns is not a struct")
	}
	for _, m := range common.Members {
		if m.Name == "inum" {
			o.inum = ns + m.Offset.Bytes()
			return nil
		}
	}
	return errors.New("the kernel's ns_common has no member inum")
}

// member returns the offset and type of the first given member that the struct has.
func member(kernel *btf.Spec, typ string, names ...string) (uint32, btf.Type, error) {
	var s *btf.Struct
	if err := kernel.TypeByName(typ, &s); err != nil {
		return 0, nil, fmt.Errorf("the kernel's struct %s: %w", typ, err)
	}
	for _, name := range names {
		if off, t, ok := within(s.Members, name); ok {
			return off, t, nil
		}
	}
	return 0, nil, fmt.Errorf("the kernel's struct %s has no member %s", typ, names[0])
}

// within also searches unnamed members.
func within(members []btf.Member, name string) (uint32, btf.Type, bool) {
	for _, m := range members {
		if m.Name == name {
			return m.Offset.Bytes(), m.Type, true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := m.Type.(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if off, t, ok := within(inner, name); ok {
			return m.Offset.Bytes() + off, t, true
		}
	}
	return 0, nil, false
}

// program returns an eBPF program that records a process when its first thread exits:
//
//	task := ctx[0]
//	exits[tgid] = {task.group_leader.start_boottime, now, task.nsproxy.mnt_ns.ns.inum}
//
// After a nil pointer, reads fail and leave zeros. The stack offsets are -8 for the key, -32 for the value, and -40 for a
// pointer.
func (o *offsets) program(m *ebpf.Map) asm.Instructions {
	const key, value, pointer = -8, -32, -40
	// read reads size bytes at from+off into the stack at to.
	read := func(from asm.Register, off uint32, to int16, size int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, int32(to)),
			asm.Mov.Imm(asm.R2, size),
			asm.Mov.Reg(asm.R3, from), asm.Add.Imm(asm.R3, int32(off)),
			asm.FnProbeReadKernel.Call(),
		}
	}
	p := asm.Instructions{
		asm.LoadMem(asm.R7, asm.R1, 0, asm.DWord), // task
		// Record only the exit of a process's first thread.
		asm.FnGetCurrentPidTgid.Call(),
		asm.Mov.Reg(asm.R6, asm.R0),
		asm.RSh.Imm(asm.R6, 32),
		asm.JNE.Reg32(asm.R6, asm.R0, "out"),
		asm.StoreMem(asm.RFP, key, asm.R6, asm.DWord),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, value, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, value+16, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, pointer, asm.R1, asm.DWord),
	}
	p = append(p, read(asm.R7, o.leader, pointer, 8)...)
	p = append(p, asm.LoadMem(asm.R8, asm.RFP, pointer, asm.DWord))
	p = append(p, read(asm.R8, o.start, value, 8)...)
	p = append(p, read(asm.R7, o.nsproxy, pointer, 8)...)
	p = append(p, asm.LoadMem(asm.R8, asm.RFP, pointer, asm.DWord))
	p = append(p, asm.JEq.Imm(asm.R8, 0, "out"))
	p = append(p, read(asm.R8, o.mntns, pointer, 8)...)
	p = append(p, asm.LoadMem(asm.R8, asm.RFP, pointer, asm.DWord))
	p = append(p, asm.JEq.Imm(asm.R8, 0, "out"))
	p = append(p, read(asm.R8, o.inum, value+16, 4)...)
	return append(p,
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, value+8, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, value),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	)
}

// get returns the record for the most recently exited process with a PID.
func (e *exits) get(pid uint32) (last exit, ok bool) {
	err := e.m.Lookup(pid, &last)
	return last, err == nil
}

func (e *exits) close() {
	if e.link != nil {
		e.link.Close()
	}
	e.prog.Close() // Close of nil does nothing
	e.m.Close()
}
