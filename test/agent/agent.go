// Package agent pins the eBPF profiler and its agent in a separate module, because the product does not need their dependencies.
package agent
