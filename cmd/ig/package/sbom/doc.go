// Package sbom has no code. Its module pins cyclonedx-gomod, which the Makefile builds.
package sbom
