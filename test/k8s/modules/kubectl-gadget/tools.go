// Package kubectlgadget pins kubectl-gadget, the client that the Kubernetes test
// drives, in a module of its own: its dependencies are none of the product's.
package kubectlgadget
