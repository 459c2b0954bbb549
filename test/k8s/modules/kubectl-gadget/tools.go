// Package kubectlgadget pins kubectl-gadget, the client that the Kubernetes test
// drives, in its own module, because the product does not need its dependencies.
package kubectlgadget
