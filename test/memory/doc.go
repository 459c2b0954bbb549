// Package memory runs the gadget profile_alloc on programs that count their own allocations, with several allocators, in C, C++ and
// Rust. Its tests have the build tag e2e and need root and the results of "make build gadgets". docs/develop/testing/allocations.md
// has the results.
package memory
