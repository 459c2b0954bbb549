// Package cosign pins cosign, which signs the gadget of the Kubernetes test, in
// a module of its own: its dependencies are none of the product's.
package cosign
