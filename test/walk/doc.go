// Package walk tests the experience of a user with a service who is new to this project. There are shops in five languages, and
// five questions for each that the command profile answers. Each shop serves orders with functions of the same names. It measures
// each by its runtime and the kernel's data about the thread. These are CPU time, time off the CPU, page faults, allocated bytes,
// and time until it had a lock. For each line on its standard input, it prints this account as JSON, by question and function.
package walk
