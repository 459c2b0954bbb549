// Package e2e is the end-to-end part of "make test". It runs each gadget once on the real kernel and into the real Collector, on
// programs that know their own profile. Its tests have the build tag e2e and need root and the results of "make build gadgets
// collector". The folders beside this one have further tests, one subject each.
package e2e
