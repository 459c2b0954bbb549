// Package matrix runs gadgets under every preset, and checks their requests against the rules of the preset's receiver.
//
// It needs root and the results of "make build gadgets", in the folders that the environment variables E2E_BIN and E2E_GADGETS
// name.
package matrix
