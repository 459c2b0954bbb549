// Package walk goes the way of somebody who has a service and no experience with this project: shops in five languages, and for each
// the five questions that the command profile answers. Each shop serves orders with functions of the same names, and keeps an account of
// what they did, by what its runtime and the kernel say of the thread: CPU time, time off the CPU, page faults, bytes that it asked for,
// and time until it had a lock. For each line on its standard input it prints its account as JSON, by question and function.
package walk
