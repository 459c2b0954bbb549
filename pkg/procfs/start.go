package procfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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

// began returns the start, given the text of a /proc/PID/stat.
func began(stat []byte) (uint64, error) {
	ticks, ok := field(stat, 22)
	if !ok || ticks >= 1<<40 { // more would be centuries
		return 0, fmt.Errorf("/proc/PID/stat has no start time: %w", os.ErrNotExist)
	}
	return ticks * Tick, nil
}

// SameStart compares two start times in nanoseconds, which may be rounded down to ticks.
func SameStart(a, b uint64) bool { return a/Tick == b/Tick }

// Executable returns the name of the executable of a process in /proc, or "" if it cannot be read.
func Executable(pid uint32) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(path, " (deleted)"))
}

// Parent returns the PID of a process's parent in proc, or 0 if there is none.
func Parent(proc string, pid uint32) uint32 {
	if stat, ok := Stat(proc, pid, 4); ok {
		return uint32(stat[0])
	}
	return 0
}

// Stat returns numbers of a process's stat file in proc, or false if the process has exited. Fields are numbered as in
// proc_pid_stat(5).
func Stat(proc string, pid uint32, fields ...int) ([]uint64, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("%s/%d/stat", proc, pid))
	ok := err == nil
	values := make([]uint64, len(fields))
	for i := 0; ok && i < len(fields); i++ {
		values[i], ok = field(stat, fields[i])
	}
	return values, ok
}

// field returns a number in the text of a /proc/PID/stat. Fields are numbered as in proc_pid_stat(5).
func field(stat []byte, number int) (value uint64, ok bool) {
	const name = 2
	// The name is in parentheses, and can contain parentheses.
	at := bytes.LastIndexByte(stat, ')')
	if at < 0 {
		return 0, false
	}
	n := name
	for text := range bytes.FieldsSeq(stat[at+1:]) {
		if n++; n == number {
			value, err := strconv.ParseUint(string(text), 10, 64)
			return value, err == nil
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
