// Package locks has the gadget profile_lock watch a program that knows itself how long it has waited for each of its
// locks, in its own code and in the kernel, beside a hundred threads without work. Its tests have the build tag e2e
// and need root and what "make build gadgets" builds.
package locks
