// Package gadgets runs gadgets on the real kernel and checks the requests that result. It runs this project's gadgets, and
// every gadget with stacks from Inspektor Gadget's Go module, unchanged. The tests have the build tag e2e. They need root and
// the results of "make build gadgets".
package gadgets
