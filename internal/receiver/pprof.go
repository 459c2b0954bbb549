package receiver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
)

// WritePprof writes samples, which have to be of one type, as one gzipped pprof profile. Samples
// that stand for time get a second value, the time itself, which pprof shows by default. Resource
// and sample attributes become labels.
func WritePprof(w io.Writer, samples []Sample) error {
	types, _ := ByType(samples)
	if len(types) != 1 {
		return fmt.Errorf("writing a pprof profile: it takes samples of one type, not of %d", len(types))
	}
	b := newPprofBuilder(types[0])
	for _, s := range samples {
		b.add(s)
	}
	p := b.finish()
	if err := p.CheckValid(); err != nil {
		return fmt.Errorf("writing a pprof profile: %w", err)
	}
	if err := p.Write(w); err != nil {
		return fmt.Errorf("writing a pprof profile: %w", err)
	}
	return nil
}

// WritePprofFiles writes one file per type of sample into dir, named after the type such as
// samples-cpu.pb.gz, and returns their paths.
func WritePprofFiles(dir string, samples []Sample) ([]string, error) {
	types, byType := ByType(samples)
	var paths []string
	taken := map[string]bool{}
	for _, t := range types {
		name := fileName(t.Type) + "-" + fileName(t.PeriodType)
		for n := 2; taken[name]; n++ {
			name = fmt.Sprintf("%s-%s-%d", fileName(t.Type), fileName(t.PeriodType), n)
		}
		taken[name] = true
		path := filepath.Join(dir, name+".pb.gz")
		if err := writeFile(path, func(w io.Writer) error { return WritePprof(w, byType[t]) }); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// writeFile writes a file that only its owner can read.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// fileName keeps what is harmless in a file's name: a type comes from whoever sent it.
func fileName(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '_'
	}, s)
	if s == "" {
		return "unknown"
	}
	return s[:min(len(s), 64)]
}

type mappingKey struct{ file, buildID string }

type functionKey struct{ name, system, file string }

// locationKey holds a location's frame. Inlined frames are separate locations here, which changes
// nothing about how a stack reads.
type locationKey struct {
	mapping uint64
	address uint64
	line    int64
	fn      uint64
}

type pprofBuilder struct {
	p         *pprof.Profile
	withTime  bool
	start     time.Time
	end       time.Time
	mappings  map[mappingKey]*pprof.Mapping
	functions map[functionKey]*pprof.Function
	locations map[locationKey]*pprof.Location
}

func newPprofBuilder(t Type) *pprofBuilder {
	b := &pprofBuilder{
		p: &pprof.Profile{
			SampleType: []*pprof.ValueType{{Type: t.Type, Unit: t.Unit}},
			PeriodType: &pprof.ValueType{Type: t.PeriodType, Unit: t.PeriodUnit},
			Period:     t.Period,
		},
		withTime:  t.Unit == "count" && t.PeriodUnit == "nanoseconds" && t.Period > 0,
		mappings:  map[mappingKey]*pprof.Mapping{},
		functions: map[functionKey]*pprof.Function{},
		locations: map[locationKey]*pprof.Location{},
	}
	if b.withTime {
		b.p.SampleType = append(b.p.SampleType, &pprof.ValueType{Type: t.PeriodType, Unit: t.PeriodUnit})
	}
	b.p.DefaultSampleType = b.p.SampleType[len(b.p.SampleType)-1].Type
	return b
}

func (b *pprofBuilder) add(s Sample) {
	out := &pprof.Sample{Value: []int64{s.Total()}, Label: map[string][]string{}}
	if b.withTime {
		out.Value = append(out.Value, s.Total()*s.Period)
	}
	for _, f := range s.Stack {
		out.Location = append(out.Location, b.location(f))
	}
	for _, attrs := range []map[string]string{s.Resource, s.Attributes} {
		for k, v := range attrs {
			out.Label[k] = []string{v}
		}
	}
	b.p.Sample = append(b.p.Sample, out)
	if b.start.IsZero() || s.Start.Before(b.start) {
		b.start = s.Start
	}
	if s.End.After(b.end) {
		b.end = s.End
	}
}

func (b *pprofBuilder) location(f Frame) *pprof.Location {
	var m *pprof.Mapping
	if k := (mappingKey{f.Mapping, f.BuildID}); k != (mappingKey{}) {
		m = b.mappings[k]
		if m == nil {
			m = &pprof.Mapping{ID: uint64(len(b.p.Mapping) + 1), File: f.Mapping, BuildID: f.BuildID, HasFunctions: true}
			b.mappings[k] = m
			b.p.Mapping = append(b.p.Mapping, m)
		}
		if f.Name == "" {
			m.HasFunctions = false
		}
	}
	var fn *pprof.Function
	if f.Name != "" || f.File != "" {
		k := functionKey{f.Name, f.SystemName, f.File}
		fn = b.functions[k]
		if fn == nil {
			fn = &pprof.Function{ID: uint64(len(b.p.Function) + 1), Name: f.Name, SystemName: f.SystemName, Filename: f.File}
			b.functions[k] = fn
			b.p.Function = append(b.p.Function, fn)
		}
	}
	k := locationKey{address: f.Address, line: f.Line}
	if m != nil {
		k.mapping = m.ID
	}
	if fn != nil {
		k.fn = fn.ID
	}
	l := b.locations[k]
	if l == nil {
		l = &pprof.Location{ID: uint64(len(b.p.Location) + 1), Mapping: m, Address: f.Address}
		if fn != nil {
			l.Line = []pprof.Line{{Function: fn, Line: f.Line}}
		}
		b.locations[k] = l
		b.p.Location = append(b.p.Location, l)
	}
	return l
}

func (b *pprofBuilder) finish() *pprof.Profile {
	b.p.TimeNanos = b.start.UnixNano()
	b.p.DurationNanos = b.end.Sub(b.start).Nanoseconds()
	return b.p.Compact()
}
