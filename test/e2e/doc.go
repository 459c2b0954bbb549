// Package e2e is the end-to-end part of "make test". It runs each gadget once, with the real kernel and the real Collector, on
// programs that know their own profiles. The tests have the build tag e2e. They need root and the results of "make build
// gadgets collector". The neighbouring folders contain further tests, one subject each.
package e2e
