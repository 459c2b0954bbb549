package procfs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Tick is the unit of times in /proc/PID/stat, in nanoseconds. It is a hundredth of a second on all architectures that Go
// supports.
const Tick = 1e7

// Began returns the start of a process in proc in nanoseconds since boot, in whole ticks. It distinguishes a process from a
// later one with the same PID.
func Began(proc string, pid uint32) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("%s/%d/stat", proc, pid))
	if err != nil {
		return 0, err
	}
	return began(stat)
}

func began(stat []byte) (uint64, error) {
	ticks, ok := start(stat)
	if !ok {
		return 0, fmt.Errorf("/proc/PID/stat has no start time: %w", os.ErrNotExist)
	}
	return ticks * Tick, nil
}

// start returns the start of a process in ticks since boot, given the text of its /proc/PID/stat. It returns false if that
// field is missing.
func start(stat []byte) (ticks uint64, ok bool) {
	const name, start = 2, 22 // field numbers
	// The name is in parentheses, and can contain parentheses.
	at := bytes.LastIndexByte(stat, ')')
	if at < 0 {
		return 0, false
	}
	n := name
	for field := range bytes.FieldsSeq(stat[at+1:]) {
		if n++; n == start {
			ticks, err := strconv.ParseUint(string(field), 10, 64)
			return ticks, err == nil && ticks < 1<<40 // bounds it to centuries
		}
	}
	return 0, false
}

// SinceBoot returns the time since boot in nanoseconds (CLOCK_BOOTTIME), which is the clock of gadgets' programs and of the
// kernel's events.
func SinceBoot() uint64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // every kernel that runs gadgets has this clock
	return uint64(now.Nano())
}
