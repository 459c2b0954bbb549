package main

import _ "embed" // for the object

// entryObject has the entry programs for this architecture: see bpf/build.sh.
//
//go:embed bpf/entry_amd64.o
var entryObject []byte
