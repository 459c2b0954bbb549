package e2e

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// parsedFile holds the samples of a Collector's file so far. The file grows, or a rotation replaces it.
type parsedFile struct {
	info    os.FileInfo
	size    int64 // bytes of complete lines
	samples []receiver.Sample
}

var parsedFiles = map[string]*parsedFile{}

// readArrived returns the samples in a Collector's file.
func readArrived(t *testing.T, file string) []receiver.Sample {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	p := parsedFiles[file]
	if p == nil || !os.SameFile(p.info, info) || info.Size() < p.size {
		p = &parsedFile{info: info}
		parsedFiles[file] = p
	}
	data, err := io.ReadAll(io.NewSectionReader(f, p.size, info.Size()-p.size))
	require.NoError(t, err)
	// The last line may be incomplete.
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	reqs, err := receiver.ReadJSONLines(bytes.NewReader(data))
	require.NoError(t, err, file)
	p.size += int64(len(data))
	p.samples = append(p.samples, receiver.ResolveAll(reqs)...)
	return p.samples
}

// arrived returns the samples in the Collectors' files whose profiles end at or after the given time.
func (c cluster) arrived(t *testing.T, since time.Time) []receiver.Sample {
	t.Helper()
	files, err := c.collectorFiles()
	require.NoError(t, err)
	var samples []receiver.Sample
	for _, file := range files {
		for _, s := range readArrived(t, file) {
			if !s.End.Before(since) {
				samples = append(samples, s)
			}
		}
	}
	return samples
}

// container is a resource with the sum of its samples.
type container struct {
	resource map[string]string
	value    int64
	burns    bool // burn_leaf is in a stack
}

// byContainer groups samples by pod and container name. Samples outside containers have the key "/".
func byContainer(samples []receiver.Sample) map[string]*container {
	groups := map[string]*container{}
	for _, s := range samples {
		key := s.Resource["k8s.pod.name"] + "/" + s.Resource["k8s.container.name"]
		g := groups[key]
		if g == nil {
			g = &container{resource: s.Resource}
			groups[key] = g
		}
		g.value += s.Total()
		for _, f := range s.Stack {
			g.burns = g.burns || f.Name == "burn_leaf"
		}
	}
	return groups
}

// at sums the values of a pod's samples whose profiles overlap the time from start to end.
func at(samples []receiver.Sample, pod string, start, end time.Time) int64 {
	var sum int64
	for _, s := range samples {
		if s.Resource["k8s.pod.name"] == pod && s.Start.Before(end) && s.End.After(start) {
			sum += s.Total()
		}
	}
	return sum
}

// inventory lists the number of samples per container and profile, for a failed test's log.
func inventory(samples []receiver.Sample) string {
	type window struct{ start, end time.Time }
	sums := map[string]map[window]int64{}
	for _, s := range samples {
		key := s.Resource["k8s.pod.name"] + "/" + s.Resource["k8s.container.name"]
		if sums[key] == nil {
			sums[key] = map[window]int64{}
		}
		sums[key][window{s.Start, s.End}] += s.Total()
	}
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(sums)) {
		windows := slices.SortedFunc(maps.Keys(sums[key]), func(a, b window) int { return a.start.Compare(b.start) })
		var total int64
		var list []string
		for _, w := range windows {
			total += sums[key][w]
			list = append(list, fmt.Sprintf("%s-%s %d", w.start.Local().Format("15:04:05.0"), w.end.Local().Format("05.0"), sums[key][w]))
		}
		fmt.Fprintf(&b, "%s: %d samples in %d profiles: %s\n", key, total, len(windows), strings.Join(list, ", "))
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// some requires that a pod has samples whose profiles overlap the time from start to end.
func some(pod string, start, end time.Time) func([]receiver.Sample) error {
	return func(s []receiver.Sample) error {
		if at(s, pod, start, end) == 0 {
			return fmt.Errorf("no samples of the pod %s between %s and %s", pod, start.Format("15:04:05.0"), end.Format("15:04:05.0"))
		}
		return nil
	}
}

// eventuallyArrived waits for samples since the given time to pass the check.
func (c cluster) eventuallyArrived(t *testing.T, since time.Time, check func([]receiver.Sample) error) {
	t.Helper()
	var samples []receiver.Sample
	defer func() {
		if t.Failed() {
			t.Logf("arrived since %s:\n%s", since.Format("15:04:05.0"), inventory(samples))
		}
	}()
	eventually(t, func() error {
		samples = c.arrived(t, since)
		return check(samples)
	})
}
