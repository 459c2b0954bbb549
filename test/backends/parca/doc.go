// Package parca is the folder of the module that builds Parca's server: see the Makefile. It has no code.
package parca
