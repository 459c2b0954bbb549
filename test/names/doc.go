// Package names runs programs of many kinds under profile_cpu and compares the names of their frames with other tools. The
// tests have the build tag e2e. "make test-names" runs them and writes docs/develop/testing/names.md.
package names
