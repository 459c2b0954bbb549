// Package kubectlgadget pins kubectl-gadget, the client of the Kubernetes test. It has its own module, because the product does
// not need its dependencies.
package kubectlgadget
