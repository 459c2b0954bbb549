// Package gadgets runs gadgets on the real kernel and looks at the requests that
// come out of them: those of this project, and every gadget of Inspektor Gadget
// that has stacks, built unchanged from its Go module. Its tests have the build
// tag e2e and need root and what "make build gadgets" builds.
package gadgets
