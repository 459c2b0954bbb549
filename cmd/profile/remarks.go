package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

// interpreters are programs whose native functions say little about the program that they run.
var interpreters = []string{"python", "node", "ruby", "perl", "php", "java", "beam.smp", "dotnet"}

// remarkable is the share of the samples from which on something is worth a remark.
const remarkable = 0.1

// lookAtLess says how the gadget gets less to do.
func (r *result) lookAtLess() string {
	switch r.gadget.name {
	case ownGadgets["alloc"]:
		return "look at less, with \"-- --sample-bytes=524288\" or more"
	case ownGadgets["lock"]:
		return "look at less, with \"-- --sample-time=5000000\" or more"
	}
	return "choose fewer processes"
}

// remarks says what a reader should know of what the samples do not show.
func (r *result) remarks(samples []receiver.Sample) []string {
	var lines []string
	if r.early {
		line := fmt.Sprintf("ig ended after %.0f s", r.run.Seconds)
		if why := lastFailure(r.log); why != "" {
			line += ": " + report.Shown(why, 512)
		}
		lines = append(lines, line)
	}
	all, lone, nameless, user, stretches, unkept := 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
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
		frames := slices.DeleteFunc(slices.Clone(s.Stack), func(f receiver.Frame) bool { return f.Type == "kernel" })
		if len(frames) == 0 {
			continue
		}
		user += n
		if len(frames) == 1 {
			lone += n
		}
		leaf := frames[report.Leaf(frames)]
		if leaf.Name == "" {
			nameless += n
			files[filepath.Base(leaf.Mapping)] += n
		}
	}
	if unkept/all >= remarkable {
		lines = append(lines, fmt.Sprintf("%.0f %% came when there was no room for it, and it is not known whose that is: %s", 100*unkept/all, r.lookAtLess()))
	}
	if user == 0 {
		return lines
	}
	interpreter := ""
	if r.opts.target.pid != 0 {
		program := programOf(r.opts.target.pid)
		if slices.ContainsFunc(interpreters, func(name string) bool { return strings.HasPrefix(program, name) }) {
			interpreter = program
		}
	}
	whole := r.gadget.name == polyglot
	ruled := r.gadget.name == ownGadgets["alloc"] || r.gadget.name == ownGadgets["lock"] // finds callers without frame pointers
	switch {
	case interpreter != "" && ruled:
		lines = append(lines, fmt.Sprintf("%s is an interpreter: %s shows its own functions, not those of the program that it runs; the gadget's README names what does", report.Shown(interpreter, 64), r.gadget.name))
	case lone/user >= remarkable && ruled:
		lines = append(lines, fmt.Sprintf("%.0f %% of the stacks end after one function: its file says nothing of how to find the caller, or could not be read", 100*lone/user))
	case interpreter != "" && !whole:
		lines = append(lines, fmt.Sprintf("%s is an interpreter: %s shows its own functions, not those of the program that it runs; --gadget polyglot does", report.Shown(interpreter, 64), r.gadget.name))
	case lone/user >= remarkable && !whole:
		lines = append(lines, fmt.Sprintf("%.0f %% of the stacks end after one function: the program has no frame pointers; --gadget polyglot finds the callers all the same", 100*lone/user))
	}
	if paused := 100 * stretches / all; paused > 0 {
		lines = append(lines, fmt.Sprintf("the gadget's probes would have cost more than it may take, and were there for short stretches of the time: %.0f %% of the amounts were estimated from these; \"-- --max-cost=1000\" has them stay, and makes the program slower", paused))
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
		lines = append(lines, fmt.Sprintf("%.0f %% of the functions have no name%s: no symbols were found, or not in this time", 100*nameless/user, where))
	}
	return lines
}
