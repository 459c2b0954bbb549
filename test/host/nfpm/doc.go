// Package nfpm is the place of the module that builds nfpm: see the Makefile. It holds no code.
package nfpm
