package report

import "github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"

// Program returns the name by which a reader knows a sample's program. In a container it is the service, else the program's name,
// else the thread's. Outside containers many programs share one service.
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
