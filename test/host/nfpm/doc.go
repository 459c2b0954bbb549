// Package nfpm is the folder of the module that builds nfpm: see the Makefile. It has no code.
package nfpm
