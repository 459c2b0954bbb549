// Package polyglot compares the gadgets that sample CPU time with the truth. Programs in a dozen languages, whose functions have
// known shares (test/loads), are profiled by "ig run", as for a backend. "make test-languages" writes the tables of
// docs/develop/testing/languages.md. Its tests have the build tag e2e and need root and make's build.
package polyglot
