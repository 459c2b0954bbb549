// Package polyglot compares the gadgets that sample CPU time with the truth. Programs in a dozen languages, whose functions
// have known shares (test/loads), are profiled by "ig run", as for a backend. "make test-languages" writes the tables of
// docs/develop/testing/languages.md. The tests have the build tag e2e. They need root and the results of make.
package polyglot
