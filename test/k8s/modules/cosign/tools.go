// Package cosign pins cosign, which signs the gadget of the Kubernetes test, in a module of its own. The product does not need its
// dependencies.
package cosign
