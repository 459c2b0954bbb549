// Package backends sends real profiles to real backends, with the settings that
// docs/guides prints, and checks the results over the backends' own query APIs: see "make
// test-backends". The servers are built from Go modules of their own in the folders
// beside this one and run as separate processes: nothing of them is linked into this project's programs.
package backends
