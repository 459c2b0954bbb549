package report

import "github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"

// Program returns what a reader knows a sample's program by: the service of what runs in a container, and
// else the name of the program, or of the thread where nothing else is known. Outside containers
// many programs share one service.
func Program(s receiver.Sample) string {
	if !InContainer(s) {
		for _, key := range []string{"process.executable.name", "thread.name"} {
			if name := s.Attributes[key]; name != "" {
				return name
			}
		}
	}
	return s.Service
}

// InContainer reports whether a sample is of a container.
func InContainer(s receiver.Sample) bool {
	for _, key := range []string{"container.id", "container.name", "k8s.container.name", "k8s.pod.name"} {
		if s.Resource[key] != "" {
			return true
		}
	}
	return false
}
