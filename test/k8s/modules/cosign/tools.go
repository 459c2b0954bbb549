// Package cosign pins cosign, which signs the gadget of the Kubernetes test. It has its own module, because the product does
// not need its dependencies.
package cosign
