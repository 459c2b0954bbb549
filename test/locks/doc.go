// Package locks runs the gadget profile_lock on a program that measures how long it waits for each of its locks, in its own code
// and in the kernel. A hundred threads without work run beside it. The tests have the build tag e2e and need root and the results
// of "make build gadgets".
package locks
