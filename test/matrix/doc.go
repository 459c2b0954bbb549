// Package matrix runs gadgets with every preset, and checks the requests by the rules of the preset's receiver.
//
// It needs root and the results of "make build gadgets". The environment variables E2E_BIN and E2E_GADGETS name the folders of
// these results.
package matrix
