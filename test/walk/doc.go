// Package walk tests the experience of a new user who profiles a service. There are shops in five languages, and the command
// profile answers five questions about each shop. All shops have functions with the same names. A shop measures each function
// with its runtime and the kernel's data about the thread. It measures CPU time, time off the CPU, page faults, allocated
// bytes, and time spent waiting for a lock. For each line on its standard input, it prints this account as JSON, by question
// and function.
package walk
