package main

import (
	_ "embed" // for go:embed

	"golang.org/x/sys/unix"
)

// auditArch is this architecture in seccomp filters.
const auditArch = unix.AUDIT_ARCH_AARCH64

// entryObject contains the entry programs for this architecture, see bpf/build.sh.
//
//go:embed bpf/entry_arm64.o
var entryObject []byte
