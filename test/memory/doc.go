// Package memory has the gadget profile_alloc watch programs that count themselves what they allocate: with several allocators, in
// C, C++ and Rust. Its tests have the build tag e2e and need root and what "make build gadgets" builds.
// docs/develop/testing/allocations.md has the results.
package memory
