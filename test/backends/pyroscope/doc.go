// Package pyroscope is the folder of the module that builds Pyroscope's server: see the Makefile. Its only code is lidia, a command
// for the tests.
package pyroscope
