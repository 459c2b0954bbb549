// Package e2e tests the whole way on the real kernel: programs that burn CPU,
// a gadget, ig with the operator, the OpenTelemetry Collector, and the file that
// the Collector writes. Its tests have the build tag e2e and want root and what
// "make test-e2e" builds.
package e2e
