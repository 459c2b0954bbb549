// Package kubectlgadget pins kubectl-gadget, the client of the Kubernetes test, in a module of its own. The product does not need
// its dependencies.
package kubectlgadget
