// Package helm pins Helm, which installs Inspektor Gadget's chart in the Kubernetes test, in a module of its own. The product does
// not need its dependencies.
package helm
