package report

import (
	"cmp"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Program returns the name that a reader knows a sample's program by. In a container, it is the service. Outside containers, many
// programs share one service, so it is the executable's name, or else the thread's name.
func Program(s receiver.Sample) string {
	if InContainer(s) {
		return s.Service
	}
	return cmp.Or(Executable(s), s.Attributes["thread.name"], s.Service)
}

// Executable returns the name of the file that a sample's process runs, or an empty string if it is unknown. Settings can move
// this attribute to the sample.
func Executable(s receiver.Sample) string {
	const key = "process.executable.name"
	return cmp.Or(s.Attributes[key], s.Resource[key])
}

// InContainer reports whether a sample comes from a container.
func InContainer(s receiver.Sample) bool {
	for _, key := range []string{"container.id", "container.name", "k8s.container.name", "k8s.pod.name"} {
		if s.Resource[key] != "" {
			return true
		}
	}
	return false
}

// noService is the service of processes outside containers with no known unit or executable.
const noService = "host"

// Identify gives samples of processes that exited before their executable was read the resource and the service of other samples.
// These have the same thread name, and all run one executable. Otherwise, a program that starts brief processes would have two
// names.
func Identify(samples []receiver.Sample) []receiver.Sample {
	of := map[string]*receiver.Sample{}
	for i, s := range samples {
		name := s.Attributes["thread.name"]
		if Executable(s) == "" || name == "" || InContainer(s) {
			continue
		}
		if other, ok := of[name]; !ok {
			of[name] = &samples[i]
		} else if other != nil && (Executable(*other) != Executable(s) || other.Service != s.Service) {
			of[name] = nil // several programs
		}
	}
	samples = slices.Clone(samples)
	for i, s := range samples {
		other := of[s.Attributes["thread.name"]]
		if other != nil && Executable(s) == "" && !InContainer(s) && (s.Service == noService || s.Service == other.Service) {
			samples[i].Service, samples[i].Resource = other.Service, other.Resource
		}
	}
	return samples
}
