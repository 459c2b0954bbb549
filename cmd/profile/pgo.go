package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
	otlp "github.com/ig-otel-profiles/ig-otel-profiles/pkg/pprof"
)

const pgoUsage = `profile pgo makes a profile for Go's compiler from the CPU time of a Go program. The compiler then inlines hot calls, and
devirtualizes hot interface calls. The profile can combine runs from many hosts and builds. An input is a result folder of this program, OTLP
profiles in a file or in a folder of the file exporter, or a pprof profile, including one from runtime/pprof.

  profile pgo -o default.pgo profile-1234-20261121-173000
  profile pgo -o default.pgo --program shop /var/lib/profiles/host-*
  go build -pgo=default.pgo ./cmd/shop

`

// runPGO merges profiles for Go's compiler.
func runPGO(args []string, out io.Writer) error {
	flags := newFlags("pgo", pgoUsage)
	output := flags.StringP("output", "o", "default.pgo", "`file` to write; go build finds default.pgo in the folder of the main package")
	program := flags.String("program", "", "the program, if the inputs have several: the `name` of its file, its main package or module, or a build ID")
	if err := parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("pgo takes at least one input: profile pgo -o default.pgo INPUT…")
	}
	m := &pgoMerger{builds: map[pgoBuildKey]*pgoBuild{}}
	for _, name := range flags.Args() {
		files, _, err := inputs(name)
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := m.read(file); err != nil {
				return fmt.Errorf("reading %s: %w", file, err)
			}
		}
	}
	chosen, err := m.choose(*program)
	if err != nil {
		return err
	}
	merged := chosen.merged()
	if err := create(*output, merged.Write); err != nil {
		return fmt.Errorf("writing the profile: %w: name another file with -o", err)
	}
	fmt.Fprintf(out, "%s: %s (%.1f s of CPU time) of %s, from %s\n", *output, plural(chosen.samples, "sample"), time.Duration(chosen.cpu).Seconds(),
		report.Shown(chosen.label(), 160), plural(int64(m.profiles), "profile"))
	if left := m.samples - chosen.samples; left > 0 {
		fmt.Fprintf(out, "  left out: %s from other programs, or with kernel frames only\n", plural(left, "sample"))
	}
	calls, agree := pgoAgreement(merged)
	fmt.Fprintf(out, "  %s with 99 %% of the weight; two halves of the samples agree in %.0f %% of it: ", plural(int64(calls), "hot call"), 100*agree)
	if agree < pgoEnough {
		fmt.Fprintf(out, "not enough, at least %.0f %% is required\n  sample for longer, or add runs from more hosts\n", 100*pgoEnough)
		return nil
	}
	fmt.Fprintf(out, "enough\n  go build -pgo=%s\n", *output)
	return nil
}

// pgoMerger adds up the stacks of Go programs.
type pgoMerger struct {
	builds   map[pgoBuildKey]*pgoBuild
	resent   receiver.Resent
	profiles int
	samples  int64
}

// pgoBuildKey identifies a program's build by the file's base name, and by the build ID if there is one.
type pgoBuildKey struct{ file, buildID string }

// pgoBuild is the inputs' data for one build of a program, or for several builds.
type pgoBuild struct {
	pgoBuildKey
	pkg          string // the main package's folder (with -trimpath, its import path); empty if no function of the package was sampled
	samples, cpu int64  // cpu in nanoseconds
	parts        []*pprof.Profile
	unmerged     int // samples in parts since the last merge
	builds       int
}

func (b *pgoBuild) add(o *pgoBuild) {
	b.file, b.buildID, b.pkg = max(b.file, o.file), max(b.buildID, o.buildID), cmp.Or(b.pkg, o.pkg)
	b.samples, b.cpu, b.parts, b.builds = b.samples+o.samples, b.cpu+o.cpu, append(b.parts, o.parts...), b.builds+1
}

// merged returns the data as one profile. The profile has no labels, because users commit it to a repository.
func (b *pgoBuild) merged() *pprof.Profile {
	p, _ := pprof.Merge(b.parts) // their types are the same
	p.Period = b.cpu / max(b.samples, 1)
	for _, m := range p.Mapping {
		m.File = b.file
	}
	return p
}

// label describes the program for users.
func (b *pgoBuild) label() string {
	label := b.file
	if b.pkg != "" {
		label += " (" + b.pkg + ")"
	}
	switch {
	case b.builds > 1:
		label += fmt.Sprintf(", %d builds", b.builds)
	case b.buildID != "":
		label += ", build " + b.buildID
	}
	return label
}

// read adds the profiles of a file.
func (m *pgoMerger) read(file string) error {
	requests, p, err := read(file)
	if requests = slices.DeleteFunc(requests, m.resent.Is); len(requests) > 0 && err == nil {
		p, err = otlp.Profile(receiver.Newest(requests)...)
	}
	if p != nil && err == nil {
		m.add(p)
	}
	return err
}

// add adds the CPU time of a profile. It ignores other profiles.
func (m *pgoMerger) add(p *pprof.Profile) {
	cpuTime, period := pprof.ValueType{Type: "cpu", Unit: "nanoseconds"}, int64(0)
	if p.PeriodType != nil && *p.PeriodType == cpuTime {
		period = p.Period
	}
	times := slices.IndexFunc(p.SampleType, func(t *pprof.ValueType) bool { return *t == cpuTime })
	counts := slices.IndexFunc(p.SampleType, func(t *pprof.ValueType) bool { return t.Type == "samples" && t.Unit == "count" })
	if times < 0 && (counts < 0 || period <= 0) {
		return
	}
	m.profiles++
	builds := m.buildsOf(p)
	parts := map[*pgoBuild]*pprof.Profile{}
	for _, s := range p.Sample {
		const most = 1 << 50 // nanoseconds, 13 days: sums do not overflow 64 bits
		var n, cpu int64
		if counts >= 0 {
			n = min(s.Value[counts], most)
			cpu = int64(min(float64(n)*float64(period), most))
		}
		if times >= 0 {
			cpu = min(s.Value[times], most)
		}
		if counts < 0 {
			n = max(cpu/max(period, 1), 1)
		}
		if n <= 0 || cpu <= 0 {
			continue
		}
		m.samples += n
		i := slices.IndexFunc(s.Location, func(l *pprof.Location) bool { return builds[l.Mapping] != nil })
		if i < 0 {
			continue
		}
		b := builds[s.Location[i].Mapping]
		b.samples, b.cpu = b.samples+n, b.cpu+cpu
		if parts[b] == nil {
			parts[b] = emptyPGOProfile()
		}
		// The compiler does not know the frames of the kernel and of libraries. Several samples can share their locations.
		own := slices.DeleteFunc(slices.Clone(s.Location), func(l *pprof.Location) bool { return builds[l.Mapping] != b || len(l.Line) == 0 })
		parts[b].Sample = append(parts[b].Sample, &pprof.Sample{Value: []int64{cpu, n}, Location: own})
	}
	for _, l := range p.Location {
		l.Mapping, l.Address, l.IsFolded = pgoMapping, 0, false
	}
	for b, part := range parts {
		b.parts, b.unmerged = append(b.parts, part), b.unmerged+len(part.Sample)
		if b.unmerged > max(10_000, len(b.parts[0].Sample)) { // merge rarely, because merging copies all samples
			merged, _ := pprof.Merge(b.parts) // their types are the same
			b.parts, b.unmerged = []*pprof.Profile{merged}, 0
		}
	}
}

// buildsOf returns the builds of the Go programs in a valid profile's mappings. Only Go functions have a start line.
func (m *pgoMerger) buildsOf(p *pprof.Profile) map[*pprof.Mapping]*pgoBuild {
	builds := map[*pprof.Mapping]*pgoBuild{}
	for _, l := range p.Location {
		for _, line := range l.Line {
			f := line.Function
			if l.Mapping == nil || l.Mapping.File == "" || f.StartLine <= 0 {
				continue
			}
			key := pgoBuildKey{path.Base(l.Mapping.File), l.Mapping.BuildID}
			b := cmp.Or(m.builds[key], &pgoBuild{pgoBuildKey: key})
			m.builds[key], builds[l.Mapping] = b, b
			if strings.HasPrefix(f.Name, "main.") && strings.HasSuffix(f.Filename, ".go") {
				b.pkg = cmp.Or(b.pkg, path.Dir(f.Filename))
			}
		}
	}
	return builds
}

// choose returns the requested program, or the only program.
func (m *pgoMerger) choose(asked string) (*pgoBuild, error) {
	// Builds with the same main package belong to one program. If no function of the main package was sampled, the file's name
	// decides. This works only if one package has this file name.
	packages := map[string]string{} // by file; the file's name if there are several
	all := slices.SortedFunc(maps.Values(m.builds), func(a, b *pgoBuild) int {
		return cmp.Or(strings.Compare(a.file, b.file), strings.Compare(a.buildID, b.buildID))
	})
	for _, b := range all {
		if known := packages[b.file]; known == "" || known == b.pkg {
			packages[b.file] = b.pkg
		} else if b.pkg != "" {
			packages[b.file] = b.file
		}
	}
	programs, matching := map[string]*pgoBuild{}, new(pgoBuild)
	for _, b := range all {
		if b.samples == 0 {
			continue
		}
		name := cmp.Or(b.pkg, packages[b.file], b.file)
		programs[name] = cmp.Or(programs[name], new(pgoBuild))
		programs[name].add(b)
		if asked == "" || asked == b.file || asked == name || strings.HasPrefix(name, asked+"/") || len(asked) >= 8 && strings.HasPrefix(b.buildID, asked) {
			matching.add(b)
		}
	}
	sorted := slices.SortedFunc(maps.Values(programs), func(a, b *pgoBuild) int {
		return cmp.Or(cmp.Compare(b.cpu, a.cpu), strings.Compare(a.label(), b.label()))
	})
	list := ""
	for _, p := range sorted[:min(10, len(sorted))] {
		list += fmt.Sprintf("\n  %-40s %s", report.Shown(p.label(), 100), plural(p.samples, "sample"))
	}
	switch {
	case m.profiles == 0:
		return nil, errors.New("the inputs have no CPU time: use profiles of --gadget cpu, from an exporter without compat_names")
	case len(programs) == 0:
		return nil, errors.New("the inputs have no Go program whose functions have start lines: build it with Go 1.20 or later, and sample its CPU time with this release")
	case matching.builds == 0:
		return nil, fmt.Errorf("--program %s: the inputs do not contain this Go program; they contain:%s", asked, list)
	case asked == "" && len(programs) > 1:
		return nil, fmt.Errorf("the inputs have %d Go programs: choose one with --program:%s", len(programs), list)
	}
	return matching, nil
}
