package main

import (
	_ "embed" // for the object

	"golang.org/x/sys/unix"
)

// auditArch is this architecture in seccomp filters.
const auditArch = unix.AUDIT_ARCH_AARCH64

// entryObject has the entry programs for this architecture: see bpf/build.sh.
//
//go:embed bpf/entry_arm64.o
var entryObject []byte
