package polyglot

import (
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// warmUp is how long a container of the virtual machine counts as new. Until a program's files are read, its stacks have no
// callers. On an emulated processor, reading takes seconds instead of tenths of a second.
const warmUp = 20 * time.Second

// guestParts divides the samples of a container in the virtual machine. The parts are its first seconds, the runtime's threads,
// and the rest, which is judged.
type guestParts struct{ early, runtime, rest []receiver.Sample }

func partsOf(samples []receiver.Sample, l loads.Load) guestParts {
	var first time.Time
	for _, s := range samples {
		if first.IsZero() || s.Start.Before(first) {
			first = s.Start
		}
	}
	var p guestParts
	for _, s := range samples {
		switch {
		case !ofProgram(s.Attributes["thread.name"], l):
			p.runtime = append(p.runtime, s)
		case s.Start.Before(first.Add(warmUp)):
			p.early = append(p.early, s)
		default:
			p.rest = append(p.rest, s)
		}
	}
	return p
}

// ofProgram reports whether a thread is the program's. Java names its own threads for the garbage collector, compilers and
// signals, but not the thread that runs main.
func ofProgram(thread string, l loads.Load) bool { return l.FrameType != "jvm" || thread == "java" }
