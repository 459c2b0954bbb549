package main

import (
	_ "embed" // for go:embed

	"golang.org/x/sys/unix"
)

// auditArch is this architecture in seccomp filters.
const auditArch = unix.AUDIT_ARCH_X86_64

// entryObject contains the entry programs for this architecture, see bpf/build.sh.
//
//go:embed bpf/entry_amd64.o
var entryObject []byte
