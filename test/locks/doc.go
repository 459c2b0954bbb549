// Package locks runs the gadget profile_lock on a program that measures how long it waits for each of its locks, in its own
// code and in the kernel. The program also has a hundred threads without work. The tests have the build tag e2e. They need root
// and the results of "make build gadgets".
package locks
