// Package parca is the place of the module that builds Parca's server: see the Makefile. It holds no code.
package parca
