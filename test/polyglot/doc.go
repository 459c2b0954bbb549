// Package polyglot holds the gadgets that sample CPU time against the truth: programs in a dozen languages whose
// functions have known shares (test/loads), profiled by "ig run", as a backend gets them. "make test-languages" writes
// the tables of docs/develop/testing/languages.md. Its tests have the build tag e2e and need root and what make builds.
package polyglot
