package main

import (
	"bytes"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

// exits records the start time and mount namespace of each process that exits. The process's samples can be read later, when
// /proc no longer lists the process.
type exits struct {
	Map     *ebpf.Map     `ebpf:"exits"`
	Program *ebpf.Program `ebpf:"process_exit"`
	link    link.Link
}

// exit describes an exited process. It is a value in exits.Map.
type exit struct {
	Start uint64 // time since boot
	Ended uint64 // exit time, on the clock of samples
	MntNS uint64
}

// watchExits starts the recording.
func watchExits() (*exits, error) {
	// Without this, the loader also reads the type information of all modules, and fails if a module has another task_struct.
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("reading the kernel's type information: %w", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(entryObject))
	if err != nil {
		return nil, fmt.Errorf("reading the program for process exits: %w", err)
	}
	e := &exits{}
	if err := spec.LoadAndAssign(e, &ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: kernel}}); err != nil {
		return nil, fmt.Errorf("loading the program for process exits: %w", err)
	}
	if e.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exit", Program: e.Program}); err != nil {
		e.close()
		return nil, fmt.Errorf("attaching to sched_process_exit: %w", err)
	}
	return e, nil
}

// get returns the record for the most recently exited process with a PID.
func (e *exits) get(pid uint32) (last exit, ok bool) {
	err := e.Map.Lookup(pid, &last)
	return last, err == nil
}

func (e *exits) close() {
	if e.link != nil {
		e.link.Close()
	}
	e.Program.Close()
	e.Map.Close()
}
