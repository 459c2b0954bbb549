// Package helm pins Helm, which installs Inspektor Gadget's chart in the Kubernetes test, in a module of its own: its
// dependencies are none of the product's.
package helm
