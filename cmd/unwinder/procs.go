package main

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// maxName limits the name of an executable, in bytes.
const maxName = 128

// maxProcs is the number of processes that are remembered.
const maxProcs = 8192

// A process that is older than settleTime is assumed to keep its namespaces for checkInterval. No PID is reused within this time,
// because the kernel assigns all other PIDs first.
const (
	settleTime    = uint64(10 * time.Second)
	checkInterval = uint64(time.Second)
)

// exeInterval is the time between two checks of a process's executable, which can change with execve.
const exeInterval = time.Second

// proc describes a process at the time of its samples. The process data are immutable.
type proc struct {
	wire.Proc
	language   wire.FrameType // the interpreter's language, derived from the executable
	told       bool           // it has had a sample
	generation uint32         // the generation of the writer's tables that id belongs to
	id         uint32
}

// known holds the remembered data for a PID.
type known struct {
	*proc
	alive uint64 // the last time, since boot, when the process is known to have had the PID

	// These are the times, since boot, when the process and its executable were last read.
	checked uint64
	looked  time.Time
}

// procs finds the process that a sample belongs to. Samples are read up to a quarter of a second late. By then, another process
// can have the PID. procs is not safe for concurrent use.
type procs struct {
	exits *exits // nil: exited processes are unknown
	pids  map[uint32]known
	// suspended is how far the clock of samples (CLOCK_MONOTONIC) lags behind the time since boot.
	suspended uint64
	synced    time.Time
}

func newProcs() *procs { return &procs{pids: map[uint32]known{}} }

func clock(id int32) uint64 {
	var ts unix.Timespec
	if unix.ClockGettime(id, &ts) != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// bootTime converts a sample's time to time since boot.
func (p *procs) bootTime(ktime uint64) uint64 {
	if time.Since(p.synced) > 10*time.Second {
		p.synced = time.Now()
		mono, boot := clock(unix.CLOCK_MONOTONIC), clock(unix.CLOCK_BOOTTIME)
		p.suspended = boot - min(mono, boot)
	}
	return ktime + p.suspended
}

// get returns the process that had the PID pid at the time of a sample. If the process is unknown, the start time is 0.
func (p *procs) get(pid uint32, ktime uint64) *proc {
	at := p.bootTime(ktime)
	old, there := p.pids[pid]
	if there && old.Start <= at && at <= old.alive && old.Start != 0 {
		return old.proc
	}
	now := clock(unix.CLOCK_BOOTTIME)
	// The sample belongs to a process that started before the sample and exited after it.
	if p.exits != nil {
		e, ended := p.exits.get(pid)
		if ended && e.Start <= at && p.bootTime(e.Ended) >= at {
			return p.remember(pid, old, e.Start, e.MntNS, p.bootTime(e.Ended), false)
		}
		if there && p.settled(old, e, now) && old.Start <= at {
			old.alive = now
			p.pids[pid] = old
			return old.proc
		}
	}
	start, mntns, err := readProc(pid)
	if err == nil && start <= at {
		return p.remember(pid, old, start, mntns, now, true)
	}
	// The process can have exited or called execve since the first check. Samples after the recorded exit still belong to this
	// process. A later process with the PID would be in /proc, or would have replaced the record.
	if p.exits != nil {
		if e, ok := p.exits.get(pid); ok && e.Start <= at {
			return p.remember(pid, old, e.Start, e.MntNS, max(at, p.bootTime(e.Ended)), false)
		}
	}
	return &proc{Proc: wire.Proc{PID: pid}}
}

// settled uses the recorded exits to decide whether a PID still belongs to the known process. Reading /proc for every sample
// would cost too much. A young process is read each time, because it can still enter a container.
func (p *procs) settled(k known, last exit, now uint64) bool {
	return k.Start != 0 && now-min(now, k.Start) > settleTime && now-min(now, k.checked) < checkInterval && p.bootTime(last.Ended) < k.checked
}

// remember records which process has a PID, at least until alive. It returns the same proc as long as nothing changes. running is
// false for an exited process, which is not in /proc.
func (p *procs) remember(pid uint32, old known, start, mntns, alive uint64, running bool) *proc {
	same := old.proc != nil && procfs.SameStart(old.Start, start) && old.MntNS == mntns
	if same {
		start = old.Start
	}
	k := known{proc: old.proc, alive: alive, looked: old.looked}
	if running {
		k.checked = alive
	}
	if !same || time.Since(old.looked) > exeInterval {
		k.looked = time.Now()
		exe := ""
		if running {
			exe = procfs.Executable(pid)
			exe = exe[:min(len(exe), maxName)]
		}
		if exe == "" && same {
			exe = old.Exe
		}
		if !same || exe != old.Exe {
			k.proc = &proc{Proc: wire.Proc{PID: pid, Start: start, MntNS: mntns, Exe: exe}, language: languageOf(exe)}
		}
	}
	if len(p.pids) >= maxProcs {
		clear(p.pids)
	}
	p.pids[pid] = k
	return k.proc
}

// readProc reads a process's start time, in nanoseconds since boot and rounded down to procfs.Tick, and its mount namespace.
// Both belong to the same process, even if the PID is reused during the call.
func readProc(pid uint32) (start, mntns uint64, err error) {
	dir, err := procfs.Open("/proc", pid)
	if err != nil {
		return 0, 0, err
	}
	defer dir.Close()
	var ns unix.Stat_t
	if err := unix.Fstatat(int(dir), "ns/mnt", &ns, 0); err != nil {
		return 0, 0, err
	}
	start, err = dir.Began("/proc", pid)
	return start, ns.Ino, err
}

// languageOf derives an interpreter's language from the executable's name.
func languageOf(exe string) wire.FrameType {
	for t, names := range wire.FrameNames {
		rest, ok := strings.CutPrefix(exe, names.Program)
		// This matches python3.11, php-fpm8.2 and beam.smp, but not nodemon or javac.
		if ok && names.Program != "" && (rest == "" || !isLetter(rest[0])) {
			return wire.FrameType(t)
		}
	}
	return wire.FrameUnknown
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
