// Package agent pins the eBPF profiler with its own agent, in a module of its own. The product does not need its dependencies.
package agent
