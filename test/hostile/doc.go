// Package hostile runs programs of a user without rights that work against the profiler, and looks at what ig and the
// programs beside them make of it. README.md has the attempts. The tests have the build tag e2e and need root and what "make build
// gadgets" builds.
package hostile
