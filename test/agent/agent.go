// Package agent pins the eBPF profiler with its own agent, in its own module, because the product does not need its
// dependencies.
package agent
