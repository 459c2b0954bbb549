package igtest

import (
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Depth is the number of frames between a function and the leaf, or -1 if the function is not on the stack.
func Depth(s receiver.Sample, function string) int {
	return slices.IndexFunc(s.Stack, func(f receiver.Frame) bool { return f.Name == function })
}

// Through returns the samples whose stacks contain a function.
func Through(samples []receiver.Sample, function string) []receiver.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return Depth(s, function) < 0 })
}

// Typed returns the samples of a type.
func Typed(samples []receiver.Sample, name string) []receiver.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool { return s.Type != name })
}

// Total adds up the values of samples.
func Total(samples []receiver.Sample) (n int64) {
	for _, s := range samples {
		n += s.Total()
	}
	return n
}
