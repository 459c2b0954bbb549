// Package backends sends real profiles to real backends, with the settings from docs/guides. It checks the results over the
// backends' own query APIs: see "make test-backends". The servers are built from Go modules of their own in the folders beside this
// one. They run as separate processes, so none of their code is linked into this project's programs.
package backends
