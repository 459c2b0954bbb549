// Package helm pins Helm, which installs Inspektor Gadget's chart in the Kubernetes test. It has its own module, because the
// product does not need its dependencies.
package helm
