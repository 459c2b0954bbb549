// Package matrix runs gadgets under every preset, and checks what they send against the rules of the
// receiver that the preset is for.
//
// It needs root, and what "make build gadgets" builds. The folders are in the environment: E2E_BIN,
// E2E_GADGETS.
package matrix
