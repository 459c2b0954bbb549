// Package agent pins the eBPF profiler with its own agent, in a module of its own: its dependencies are none of the
// product's.
package agent
