package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
)

const (
	// maxInput limits the size of a file, and of an unpacked pprof profile, in bytes.
	maxInput = 1 << 30
	// maxFiles limits the number of files that are read from a folder.
	maxFiles = 10_000
)

// load loads a range of the history, such as 14:05+5m, or a result.
func (p *past) load(name string) (runInfo, []receiver.Sample, error) {
	q, ok, err := parseRange(name, time.Now())
	if !ok {
		return load(name)
	}
	if err != nil {
		return runInfo{}, nil, err
	}
	info, answer, err := p.read(q)
	return info, receiver.Resolve(answer.Request), err
}

// load loads a result: its folder, OTLP in JSON or protobuf, a pprof profile, or a folder of such files. If the run's length is
// unknown, it is the time from the first to the last profile, or the time that pprof profiles cover. Files of a result have the
// length of its run.
func load(name string) (runInfo, []receiver.Sample, error) {
	info := runInfo{}
	files, folder, err := inputs(name)
	if err != nil {
		return info, nil, err
	}
	dir := name
	if base := filepath.Base(name); base == samplesFile || base == receiver.PprofFile {
		dir = filepath.Dir(name)
	}
	if folder || dir != name {
		if info, err = readRunInfo(dir); err != nil {
			return info, nil, err
		}
	}
	var requests []*collectorpb.ExportProfilesServiceRequest
	var samples []receiver.Sample
	var spans []span
	for _, file := range files {
		more, profile, err := read(file)
		if err != nil {
			return info, nil, fmt.Errorf("reading %s: %w", file, err)
		}
		requests = append(requests, more...)
		if profile != nil {
			samples = append(samples, fromPprof(profile)...)
			spans = append(spans, span{profile.TimeNanos, profile.DurationNanos})
		}
	}
	samples = append(samples, receiver.ResolveAll(receiver.Newest(requests))...)
	if len(samples) == 0 {
		return info, nil, fmt.Errorf("%s has no samples", name)
	}
	if info.Seconds <= 0 {
		info.Started = slices.MinFunc(samples, func(a, b receiver.Sample) int { return a.Start.Compare(b.Start) }).Start
		end := slices.MaxFunc(samples, func(a, b receiver.Sample) int { return a.End.Compare(b.End) }).End
		info.Seconds = end.Sub(info.Started).Seconds()
		if len(requests) == 0 {
			info.Seconds = covered(spans).Seconds()
		}
	}
	info.Target = cmp.Or(info.Target, filepath.Base(name))
	return info, samples, nil
}

// span is the start of a pprof profile, in nanoseconds since 1970 or 0, and its duration in nanoseconds.
type span struct{ start, duration int64 }

// covered returns how much time spans cover. Time in several spans counts once, if their start is known.
func covered(spans []span) (all time.Duration) {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	until := int64(0)
	for _, s := range spans {
		end := s.start + s.duration
		if s.start == 0 {
			all += time.Duration(s.duration)
			continue
		}
		all += time.Duration(max(0, end-max(s.start, until)))
		until = max(until, end)
	}
	return all
}

// inputs returns the files of an input, and whether it is a folder.
func inputs(name string) (files []string, folder bool, err error) {
	stat, err := os.Stat(name)
	if err != nil {
		return nil, false, fmt.Errorf("reading a result: %w", err)
	}
	dir := name
	if stat.IsDir() {
		files, err = inFolder(name)
	} else {
		files, dir = []string{name}, filepath.Dir(name)
	}
	if slices.ContainsFunc(files, func(file string) bool { return filepath.Ext(file) == history.Suffix }) {
		err = fmt.Errorf("%s is a history. First write a result from it: profile history --from %s --since 1h -o RESULT", dir, dir)
	}
	return files, stat.IsDir(), err
}

func readRunInfo(dir string) (info runInfo, err error) {
	text, err := os.ReadFile(filepath.Join(dir, runFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return info, nil
	case err != nil:
		return info, fmt.Errorf("reading a result: %w", err)
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return info, fmt.Errorf("reading %s: %w", filepath.Join(dir, runFile), err)
	}
	return info, nil
}

// inFolder returns the files with samples in a folder. For a result of this program, it returns only the OTLP file, because the
// other files contain the same data. In a folder of the file exporter, a file with this name can have rotated files beside it.
func inFolder(dir string) ([]string, error) {
	if file := filepath.Join(dir, samplesFile); exists(file) && (exists(filepath.Join(dir, runFile)) || exists(filepath.Join(dir, receiver.PprofFile))) {
		return []string{file}, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading a result: %w", err)
	}
	var files []string
	for _, entry := range entries {
		if name := entry.Name(); entry.Type().IsRegular() && !strings.HasPrefix(name, ".") && !strings.HasSuffix(name, ".html") && name != runFile {
			files = append(files, filepath.Join(dir, name))
		}
	}
	switch {
	case len(files) == 0:
		return nil, fmt.Errorf("reading a result: there are no profiles in %s", dir)
	case len(files) > maxFiles:
		return nil, fmt.Errorf("reading a result: %s has %d files, more than %d: name fewer files", dir, len(files), maxFiles)
	}
	return files, nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

var errFormat = errors.New("unknown format: must be OTLP profiles in JSON, length-prefixed OTLP profiles in protobuf, or pprof")

// read reads a file. The first bytes show whether it contains OTLP requests or a pprof profile.
func read(file string) ([]*collectorpb.ExportProfilesServiceRequest, *pprof.Profile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxInput+1))
	switch {
	case err != nil:
		return nil, nil, err
	case len(data) > maxInput:
		return nil, nil, fmt.Errorf("it is larger than %d bytes", maxInput)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, nil, nil
	case bytes.HasPrefix(data, []byte{0x1f, 0x8b}): // gzip
		p, err := pprof.ParseData(data)
		return nil, p, err
	case bytes.TrimSpace(data)[0] == '{':
		requests, err := receiver.ReadJSONLines(bytes.NewReader(data))
		return requests, nil, err
	}
	if requests, err := withLengths(data); err == nil {
		return requests, nil, nil
	}
	if p, err := pprof.ParseData(data); err == nil {
		return nil, p, nil
	}
	return nil, nil, errFormat
}

// withLengths decodes length-prefixed requests. A length has four bytes, big endian.
func withLengths(data []byte) (requests []*collectorpb.ExportProfilesServiceRequest, err error) {
	for len(data) > 0 {
		if len(data) < 4 || uint64(binary.BigEndian.Uint32(data)) > uint64(len(data)-4) {
			return nil, errFormat
		}
		n := binary.BigEndian.Uint32(data)
		req := &collectorpb.ExportProfilesServiceRequest{}
		if err := proto.Unmarshal(data[4:4+n], req); err != nil {
			return nil, err
		}
		requests, data = append(requests, req), data[4+n:]
	}
	return requests, nil
}

// fromPprof returns the samples of a pprof profile. It leaves out CPU time if the profile also has the number of samples.
func fromPprof(p *pprof.Profile) []receiver.Sample {
	period := pprof.ValueType{}
	if p.PeriodType != nil {
		period = *p.PeriodType
	}
	start := time.Unix(0, p.TimeNanos).UTC()
	stacks := map[*pprof.Location][]receiver.Frame{}
	for _, l := range p.Location {
		stacks[l] = framesOf(l)
	}
	var samples []receiver.Sample
	timed := false
	for i, t := range p.SampleType {
		hits := t.Type == "samples" && t.Unit == "count" && period.Unit == "nanoseconds" && p.Period > 0
		timed = timed || hits
		if timed && !hits && t.Unit == "nanoseconds" && t.Type == period.Type {
			continue
		}
		for _, s := range p.Sample {
			if s.Value[i] == 0 {
				continue
			}
			out := receiver.Sample{
				Type: t.Type, Unit: t.Unit, PeriodType: period.Type, PeriodUnit: period.Unit, Period: p.Period,
				Resource: map[string]string{}, Attributes: map[string]string{}, Values: []int64{s.Value[i]}, Start: start, End: start.Add(time.Duration(p.DurationNanos)),
			}
			for key, values := range s.Label {
				if strings.HasPrefix(key, "container.") || strings.HasPrefix(key, "k8s.") || strings.HasPrefix(key, "service.") {
					out.Resource[key] = strings.Join(values, ",")
				} else {
					out.Attributes[key] = strings.Join(values, ",")
				}
			}
			out.Service = out.Resource["service.name"]
			if out.Service == "" && len(p.Mapping) > 0 {
				out.Service = path.Base(p.Mapping[0].File)
			}
			for _, l := range s.Location {
				out.Stack = append(out.Stack, stacks[l]...)
			}
			samples = append(samples, out)
		}
	}
	return samples
}

// sourceTypes maps extensions of source files to frame types, because pprof has no frame types.
var sourceTypes = map[string]string{".go": "go", ".java": "jvm", ".js": "v8js", ".php": "php", ".py": "cpython", ".rb": "ruby"}

func framesOf(l *pprof.Location) []receiver.Frame {
	base := receiver.Frame{Type: "native", Address: l.Address}
	if l.Mapping != nil {
		base.Mapping, base.BuildID = l.Mapping.File, l.Mapping.BuildID
	}
	if strings.HasPrefix(base.Mapping, "[kernel") {
		base.Type = "kernel"
	}
	if len(l.Line) == 0 {
		return []receiver.Frame{base}
	}
	frames := make([]receiver.Frame, 0, len(l.Line))
	for _, line := range l.Line {
		f := base
		if line.Function != nil {
			f.Name, f.SystemName, f.File = line.Function.Name, line.Function.SystemName, line.Function.Filename
		}
		f.Line = line.Line
		if kind := sourceTypes[path.Ext(f.File)]; kind != "" && f.Type == "native" {
			f.Type = kind
		}
		frames = append(frames, f)
	}
	return frames
}
