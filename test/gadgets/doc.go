// Package gadgets runs gadgets on the real kernel and looks at the requests that
// come out of them: those of this project, and every gadget of Inspektor Gadget
// that has stacks, built unchanged from its Go module. Its tests have the build
// tag e2e and want root and what "make build gadgets" builds.
//
// They write a table of what each gadget gave, gadgets.md, and the requests of each
// run, captures/<run>, next to the folder of the gadgets' images.
package gadgets
