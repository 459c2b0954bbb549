// Package unwinder runs the program unwinder, which unwinds whole stacks of gadgets' events, and distributes its output. A
// process has one unwinder for any number of gadgets.
//
// The unwinder reads files and memory of programs. A hostile program could crash the unwinder. It is restarted when it exits,
// writes nothing, writes invalid output, or uses too much memory. Its samples are then lost and counted. The unwinder has all
// rights of this process, so a hostile program that could take it over would have them, too.
package unwinder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// Program is the name of the unwinder's executable. It is only searched for next to the running executable.
const Program = "unwinder"

// MaxScale limits Settings.Scale.
const MaxScale = 8

// languages lists the values that Settings.Languages can contain.
var languages = []string{"beam", "dotnet", "go", "java", "lua", "native", "node", "perl", "php", "python", "ruby"}

// Settings holds a subscriber's requests. The unwinder runs with the union of all subscribers' settings.
type Settings struct {
	// Chains is a comma-separated list of the kinds of chains (wire.ChainKind) that gadgets' programs call to have stacks
	// unwound. The kinds of one gadget either all have slots or all have none.
	Chains string
	// Languages is "all" or a comma-separated list of languages to unwind besides native code.
	Languages string
	// Scale makes the unwinder's eBPF maps 2^Scale times as large.
	Scale int
	// Spans keeps the IDs of programs' current spans. Labels is a comma-separated list of programs' labels to keep.
	Spans  bool
	Labels string
}

// light lists the chains that only need an entry program. They are always loaded. Each other chain takes a second of CPU time
// or more, and is loaded when a gadget first requests it.
const light = "otel_perf,perf"

// slotted reports whether the programs that call the chains use slots.
func (s Settings) slotted() bool {
	kinds, _ := wire.ParseChains(s.Chains)
	return slices.ContainsFunc(kinds, func(k wire.ChainKind) bool { return int(k) < wire.Slots })
}

// grown returns the chains that only o has. It returns false if s and o differ in anything else.
func (s Settings) grown(o Settings) (kinds []wire.ChainKind, only bool) {
	before := s.Chains
	s.Chains = o.Chains
	if s != o || before == "" {
		return nil, false
	}
	all, _ := wire.ParseChains(o.Chains)
	had, _ := wire.ParseChains(before)
	return slices.DeleteFunc(all, func(k wire.ChainKind) bool { return slices.Contains(had, k) }), true
}

// MaxLabelName is the number of bytes of a label's name that the profiler reads.
const MaxLabelName = 15

// Check returns an error for invalid settings.
func (s Settings) Check() error {
	if s.Scale < 0 || s.Scale > MaxScale {
		return fmt.Errorf("memory scale: got %d, expected 0 to %d", s.Scale, MaxScale)
	}
	if _, err := wire.ParseChains(s.Chains); err != nil {
		return err
	}
	if n := len(split(s.Labels)); n > wire.MaxLabels { // the profiler reads as many labels of one goroutine
		return fmt.Errorf("got %d labels, expected at most %d", n, wire.MaxLabels)
	}
	if s.Languages == all {
		return nil
	}
	for _, l := range strings.Split(s.Languages, ",") {
		if !slices.Contains(languages, l) {
			return fmt.Errorf("unknown language %q: use all, or a comma-separated list of %s", l, strings.Join(languages, ", "))
		}
	}
	return nil
}

const all = "all"

// Unwinds reports whether frames of this type were requested.
func (s Settings) Unwinds(t wire.FrameType) bool {
	return s.Languages == all || slices.Contains(split(s.Languages), wire.FrameNames[t].Setting)
}

// with returns the union of s and o.
func (s Settings) with(o Settings) Settings {
	s.Scale, s.Spans = max(s.Scale, o.Scale), s.Spans || o.Spans
	s.Labels, s.Chains = union(s.Labels, o.Labels), union(s.Chains, o.Chains)
	switch {
	case s.Languages == "":
		s.Languages = o.Languages
	case s.Languages == all || o.Languages == all:
		s.Languages = all
	default:
		s.Languages = union(s.Languages, o.Languages)
	}
	return s
}

// union returns the sorted union of two comma-separated lists.
func union(a, b string) string {
	list := append(split(a), split(b)...)
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// ErrNoProgram is the error if the unwinder is not installed.
var ErrNoProgram = errors.New("the program " + Program + " is not installed")

// find returns the path of the unwinder.
func find() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the program %s: %w", Program, err)
	}
	path := filepath.Join(filepath.Dir(own), Program)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("%w: install it next to this program, at %s (make build does so)", ErrNoProgram, path)
	}
	return path, nil
}
