// Package pyroscope is the place of the module that builds Pyroscope's server: see the Makefile. It holds no code but that of
// lidia, a command for the tests.
package pyroscope
