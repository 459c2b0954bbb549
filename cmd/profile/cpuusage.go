package main

import (
	"slices"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// cpuUsage holds the CPU time that processes have used up to now.
type cpuUsage struct {
	// own is the CPU time of each running process.
	own map[int]time.Duration
	// tree is the CPU time of these processes and their descendants. It includes exited children that their parents have waited
	// for.
	tree time.Duration
}

// usageOf returns the CPU time of processes and of their descendants. The resolution is the kernel's tick of 10 ms.
func usageOf(pids []int) cpuUsage {
	u := cpuUsage{own: map[int]time.Duration{}}
	if len(pids) == 0 {
		return u
	}
	for _, pid := range withChildren(pids, parents()) {
		ticks, ok := procfs.Stat("/proc", uint32(pid), 14, 15, 16, 17)
		if !ok {
			continue // the process has exited
		}
		if slices.Contains(pids, pid) {
			u.own[pid] = time.Duration(ticks[0]+ticks[1]) * procfs.Tick
		}
		u.tree += time.Duration(ticks[0]+ticks[1]+ticks[2]+ticks[3]) * procfs.Tick
	}
	return u
}

// since returns the CPU time since an earlier reading. own is for the running processes, and below for their descendants.
func (u cpuUsage) since(before cpuUsage) (own, below time.Duration) {
	for pid, now := range u.own {
		own += now - before.own[pid]
	}
	return own, max(0, u.tree-before.tree-own)
}
