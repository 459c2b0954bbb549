package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
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
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // the process has exited
		}
		// Fields 14 to 17 of proc_pid_stat(5), after the name.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		var ticks [4]int64
		for i := range ticks {
			if ticks[i], err = strconv.ParseInt(fields[11+i], 10, 64); err != nil {
				return u
			}
		}
		const tick = 10 * time.Millisecond
		if slices.Contains(pids, pid) {
			u.own[pid] = time.Duration(ticks[0]+ticks[1]) * tick
		}
		u.tree += time.Duration(ticks[0]+ticks[1]+ticks[2]+ticks[3]) * tick
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
