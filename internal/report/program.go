package report

import (
	"cmp"

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
