package e2e

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// arrived returns the samples that the Collectors have written to files since
// the given time, by the clock of the profiles.
func (c cluster) arrived(t *testing.T, since time.Time) []receiver.Sample {
	t.Helper()
	files, err := c.collectorFiles()
	require.NoError(t, err)
	var samples []receiver.Sample
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		// The last line may be half written.
		data = data[:bytes.LastIndexByte(data, '\n')+1]
		reqs, err := receiver.ReadJSONLines(bytes.NewReader(data))
		require.NoError(t, err, file)
		for _, req := range reqs {
			for _, s := range receiver.Resolve(req) {
				if !s.End.Before(since) {
					samples = append(samples, s)
				}
			}
		}
	}
	return samples
}

// container is one resource in the words of the table: what its samples add up to.
type container struct {
	resource map[string]string
	value    int64
	burns    bool // burn_leaf is in a stack
}

// byContainer groups samples by pod and container name; what is in no
// container is under "/".
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

// at sums the values of a container's samples whose profile covers some of
// the time from start to end.
func at(samples []receiver.Sample, pod string, start, end time.Time) int64 {
	var sum int64
	for _, s := range samples {
		if s.Resource["k8s.pod.name"] == pod && s.Start.Before(end) && s.End.After(start) {
			sum += s.Total()
		}
	}
	return sum
}
