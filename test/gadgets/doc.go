// Package gadgets runs gadgets on the real kernel and checks the requests that result. It runs those of this project, and every
// gadget with stacks from Inspektor Gadget's Go module, unchanged. Its tests have the build tag e2e and need root and the results
// of "make build gadgets".
package gadgets
