// Package sbom is the place of the module that builds cyclonedx-gomod: see the Makefile. It holds no code.
package sbom
