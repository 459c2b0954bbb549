package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

// target is what to sample. The zero value is everything.
type target struct {
	pid       int
	comm      string
	container string
}

// commLength is how much of a thread's name the kernel keeps, in bytes.
const commLength = 15

func (t target) check() error {
	given := 0
	for _, yes := range []bool{t.pid != 0, t.comm != "", t.container != ""} {
		if yes {
			given++
		}
	}
	if given > 1 {
		return errors.New("--pid, --comm and --container cannot be used together: take one")
	}
	if len(t.comm) > commLength {
		return fmt.Errorf("--comm %q: the kernel keeps the first %d bytes of a name: use %q", t.comm, commLength, t.comm[:commLength])
	}
	return nil
}

// all reports whether everything is sampled.
func (t target) all() bool { return t == target{} }

// String names the target for people.
func (t target) String() string {
	switch {
	case t.pid != 0:
		if name := commOf(t.pid); name != "" {
			return fmt.Sprintf("process %d (%s)", t.pid, report.Shown(name, 2*commLength))
		}
		return fmt.Sprintf("process %d", t.pid)
	case t.comm != "":
		return "programs called " + t.comm
	case t.container != "":
		return "container " + t.container
	}
	return "this machine"
}

// fileName names the target in a file's name.
func (t target) fileName() string {
	name := "all"
	switch {
	case t.pid != 0:
		name = strconv.Itoa(t.pid)
	case t.comm != "":
		name = t.comm
	case t.container != "":
		name = t.container
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, name)
}

// igFlags are the flags of "ig run" that choose the target.
func (t target) igFlags() []string {
	switch {
	case t.pid != 0:
		return []string{"--host", "--pid=" + strconv.Itoa(t.pid)}
	case t.comm != "":
		return []string{"--host", "--comm=" + t.comm}
	case t.container != "":
		return []string{"--containername=" + t.container}
	}
	return []string{"--host"}
}

// exists returns an error where it is sure that there is nothing to sample. A program that is not there
// by its name may still be started.
func (t target) exists() error {
	if t.pid == 0 {
		return nil
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.pid))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no process %d: it has ended, or its number is that of another PID namespace, as in a container; ps -e lists those of this one", t.pid)
	}
	if err != nil {
		return fmt.Errorf("looking for process %d: %w", t.pid, err)
	}
	for line := range bytes.Lines(status) {
		if group, ok := bytes.CutPrefix(line, []byte("Tgid:")); ok {
			if leader := string(bytes.TrimSpace(group)); leader != strconv.Itoa(t.pid) {
				return fmt.Errorf("%d is a thread of process %s: use --pid %s", t.pid, leader, leader)
			}
		}
	}
	return nil
}

// commOf returns the name of a process, empty if there is none.
func commOf(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(name), "\n")
}

// programOf returns the name of the file that a process runs, empty if it cannot be read.
func programOf(pid int) string {
	file, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(file), " (deleted)")
}

// cpuTime returns the CPU time that a process has used, in the kernel's ticks of 10 ms, and false if
// there is no such process.
func cpuTime(pid int) (time.Duration, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// Fields 14 and 15, counted after the name; see proc_pid_stat(5).
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, false
	}
	var sum time.Duration
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, false
		}
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum, true
}

// named returns how many threads of this machine have a name.
func named(comm string) int {
	files, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/comm")
	if err != nil {
		return 0
	}
	n := 0
	for _, file := range files {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSuffix(string(name), "\n") == comm {
			n++
		}
	}
	return n
}
