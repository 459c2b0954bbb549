// Package memory runs the gadget profile_alloc on programs in C, C++ and Rust that count their own allocations. They use
// several allocators. The tests have the build tag e2e. They need root and the results of "make build gadgets".
// docs/develop/testing/allocations.md has the results.
package memory
