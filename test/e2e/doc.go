// Package e2e is the end-to-end part of "make test": each gadget once, on the real kernel and into the real Collector,
// on programs that know their own profile. Its tests have the build tag e2e and need root and what "make build gadgets
// collector" builds. Further tests of one subject each are in the folders beside this one.
package e2e
