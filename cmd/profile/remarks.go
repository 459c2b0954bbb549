package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// remarkable is the smallest share of the samples that is worth a remark.
const remarkable = 0.1

// fewSamples is the smallest number of samples with meaningful shares. With ten samples, a share of 50 % has an error of 26
// percentage points.
const fewSamples = 10

// instead explains how to show the missing data, or why this is impossible.
func (r *result) instead() string {
	whole, why := unwound(r.log)
	switch {
	case why != "":
		return "; whole stacks are not available here: " + why
	case r.gadget.name == ownGadgets["cpu"] && !whole:
		return "; \"-- --unwind=whole\" shows them"
	case r.ruled():
		return "; the gadget's README names tools that show them"
	}
	return "; a build with -fno-omit-frame-pointer shows callers of native code"
}

// ruled reports whether the gadget classifies events by stack.
func (r *result) ruled() bool {
	return r.gadget.name == ownGadgets["alloc"] || r.gadget.name == ownGadgets["lock"]
}

// interpreter returns the program of --pid if it is an interpreter, or "".
func (r *result) interpreter() string {
	for _, pid := range r.opts.target.list {
		if program := procfs.Executable(uint32(pid)); report.IsInterpreter(program) {
			return program
		}
	}
	return ""
}

// runtimes lists the languages with memory or waits that a gadget does not see. Each has a frame type and a prefix of program
// names.
var runtimes = []struct{ frames, program string }{{"go", ""}, {"jvm", "java"}, {"cpython", "python"}, {"v8js", "node"}}

// unseen describes, by gadget and frame type, the data that a gadget does not see in a language, and the tool that shows it.
var unseen = map[string]map[string]string{
	ownGadgets["lock"]: {
		"go":      "Go parks goroutines that wait for a sync.Mutex, and no thread waits. Go's own mutex profile shows them: /debug/pprof/mutex of net/http/pprof",
		"jvm":     "Java parks threads that wait for a monitor or a lock of java.util.concurrent on a condition variable: JFR (jdk.JavaMonitorEnter, jdk.ThreadPark) names these locks, and --gadget offcpu shows the waits",
		"cpython": "Python's GIL and threading.Lock are a condition variable and a semaphore: \"-- --all-futex\" shows waits for these",
		"v8js":    "JavaScript has no locks: only locks of Node.js, V8 and the kernel are shown",
	},
	ownGadgets["alloc"]: {
		"go":      "Go's objects come from Go's own runtime, and only objects of C code are shown. Go's own heap profile shows them: /debug/pprof/allocs of net/http/pprof",
		"jvm":     "objects of the Java heap are not shown, only memory of the JVM and of native code: JFR (jdk.ObjectAllocationSample) or async-profiler (-e alloc) shows them",
		"cpython": "Python takes objects of up to 512 bytes from its own blocks, so they are not shown: tracemalloc or memray shows them",
		"v8js":    "objects of V8's heap are not shown, only buffers and native code: node --heap-prof shows them",
	},
	ownGadgets["offcpu"]: {
		"go": "Go parks goroutines that wait for a channel, a sync.Mutex, a timer or the network, and no thread waits. Go's block profile (/debug/pprof/block of net/http/pprof) shows waits for channels and mutexes, if the program turns it on; go tool trace shows the others",
	},
}

// unseen describes the data that the gadget does not see in the sampled runtimes, and the tools that show it.
func (r *result) unseen(samples []receiver.Sample) (lines []string) {
	texts, program := unseen[r.gadget.name], r.interpreter()
	for _, runtime := range runtimes {
		text := texts[runtime.frames]
		if text == "" {
			continue
		}
		if runtime.program != "" && strings.HasPrefix(program, runtime.program) ||
			runtime.program == "" && slices.ContainsFunc(r.opts.target.list, isGo) ||
			slices.ContainsFunc(samples, func(s receiver.Sample) bool {
				return slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return f.Type == runtime.frames })
			}) {
			lines = append(lines, text)
		}
	}
	return lines
}

// others describes the CPU time of child processes of --pid, which the run did not sample.
func (r *result) others() string {
	if r.opts.target.settled {
		return fmt.Sprintf("child processes that started during the run used %.2f s of CPU time and are not shown: --children finds them only with this program's own gadgets, and with a short list of PIDs", r.below.Seconds())
	}
	return fmt.Sprintf("child processes of --pid used %.2f s of CPU time and are not shown: --children samples them, "+
		"--comm samples such processes by their name, and a run without --pid samples all", r.below.Seconds())
}

// lookAtLess returns advice on reducing the gadget's work.
func (r *result) lookAtLess() string {
	switch r.gadget.name {
	case ownGadgets["alloc"]:
		return "sample less, with \"-- --sample-bytes=524288\" or more"
	case ownGadgets["lock"]:
		return "sample less, with \"-- --sample-time=5000000\" or more"
	}
	return "choose fewer processes"
}

// plainUnits replaces ig's units with the units of the tables.
var plainUnits = strings.NewReplacer("(0.0 %", "(<0.1 %", " of the nanoseconds)", " of the time)", " of the count)", ")")

// remarks returns notes about missing data.
func (r *result) remarks(samples []receiver.Sample) []string {
	var lines []string
	if r.early {
		line := fmt.Sprintf("ig exited after %.0f s", r.run.Seconds)
		if why := lastSaid(errorLine, r.log); why != "" {
			line += ": " + report.Shown(why, 512)
		}
		lines = append(lines, line)
	}
	if r.below > r.cpu/10 && r.below >= 100*time.Millisecond {
		lines = append(lines, r.others())
	}
	all, cut, lone, plain, nameless, user, stretches, unkept, brief := 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
	service, java := "", false
	files := map[string]float64{}
	for _, s := range samples {
		n := float64(s.Total())
		all += n
		if s.Attributes["alloc.attached"] == "stretches" {
			stretches += n
		}
		if name := s.Attributes["thread.name"]; name == "[captures full]" || name == "[rows full]" {
			unkept += n
			continue
		}
		frames := slices.DeleteFunc(slices.Clone(s.Stack), func(f receiver.Frame) bool { return f.Type == "kernel" || report.Missing(f.Name) })
		if len(frames) == 0 {
			if slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return f.Name == "[truncated]" }) {
				cut += n
			}
			continue
		}
		user += n
		if !report.InContainer(s) && report.Executable(s) == "" && s.Attributes["thread.name"] != "" {
			brief, service = brief+n, s.Service
		}
		if len(frames) == 1 {
			lone += n
		}
		if !report.Interpreted(frames) {
			plain += n
		}
		java = java || slices.ContainsFunc(frames, func(f receiver.Frame) bool { return f.Type == "jvm" })
		if leaf := report.Fold([]receiver.Sample{{Stack: frames}})[0].Stack[0]; leaf.Name == "" {
			nameless += n
			files[filepath.Base(leaf.Mapping)] += n
		}
	}
	if all > 0 && all < fewSamples && r.gadget.name == ownGadgets["cpu"] {
		lines = append(lines, plural(int64(all), "sample")+": too few to compare functions. Sample for longer, or more often with --frequency; --gadget offcpu shows what threads wait for")
	}
	if unkept/all >= remarkable {
		lines = append(lines, fmt.Sprintf("%.0f %% of the sum comes from events that arrived when the gadget's tables were full, so their program is not known: %s", 100*unkept/all, r.lookAtLess()))
	}
	whole, _ := unwound(r.log)
	if whole && cut/all >= remarkable {
		lines = append(lines, fmt.Sprintf("%.0f %% of the stacks could not be unwound: the unwinder reads a program in the first seconds, or later on a busy machine. Sample for longer, or repeat the run", 100*cut/all))
	}
	if share, which := notUnwound(r.log); share >= remarkable {
		of := ""
		if len(r.opts.target.list) > 1 && !r.opts.target.byGadget { // only rows are filtered, so the gadget's counts include all processes
			of = " of all events on this machine"
		}
		lines = append(lines, fmt.Sprintf("%.0f %%%s have stacks collected with frame pointers, which can lack callers: %s", 100*share, of, report.Shown(plainUnits.Replace(which), 1024)))
	}
	if brief/all >= remarkable && ownName(r.gadget.name) {
		lines = append(lines, fmt.Sprintf("%.0f %% come from processes that exited before their program was read: they have their thread's name as program, and the service %s",
			100*brief/all, report.Shown(service, 64)))
	}
	if user == 0 {
		return lines
	}
	if java && r.gadget.name == ownGadgets["cpu"] {
		lines = append(lines, "the time of Java methods that the JVM has inlined can count for their callers: start it with -XX:+UnlockDiagnosticVMOptions -XX:+DebugNonSafepoints to see them")
	}
	if plain/user >= 0.5 && !whole {
		if program := r.interpreter(); program != "" {
			lines = append(lines, fmt.Sprintf("%s is an interpreter: %s shows its own functions, not the functions of the program that it runs%s", report.Shown(program, 64), r.gadget.name, r.instead()))
		}
	}
	if lone/user >= remarkable && !whole {
		why := "the program has no frame pointers" + r.instead()
		if r.ruled() {
			why = "its file has no unwind rules, or could not be read"
		}
		lines = append(lines, fmt.Sprintf("%.0f %% of the stacks end after one function: %s", 100*lone/user, why))
	}
	if paused := 100 * stretches / all; paused > 0 {
		lines = append(lines, fmt.Sprintf("the gadget's probes would have cost more than --max-cost, so they were attached for short periods only: %.0f %% of the amounts are estimates from these periods; \"-- --max-cost=1000\" keeps the probes attached, but makes the program slower", paused))
	}
	if nameless/user >= remarkable {
		worst, most := "", 0.0
		for file, n := range files {
			if n > most || n == most && file < worst {
				worst, most = file, n
			}
		}
		where := ""
		if worst != "." && worst != "" {
			where = ", most of them in " + report.Shown(worst, 64)
		}
		lines = append(lines, fmt.Sprintf("%.0f %% of the functions have no name%s: no symbols were found, or they were read too late", 100*nameless/user, where))
	}
	return lines
}
