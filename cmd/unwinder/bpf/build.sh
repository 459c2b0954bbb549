#!/usr/bin/env bash
# build.sh FOLDER: compiles entry.bpf.c for both architectures with the headers of the profiler's module, which is in Go's module
# cache, and notes the module's version. "make unwinder-bpf" commits what this makes; TestEntryObjects makes it again and compares.
set -eu
out=$(realpath "$1")
cd "$(dirname "$0")"
module=go.opentelemetry.io/ebpf-profiler
go mod download "$module"
headers=$(go list -m -f '{{.Dir}}' "$module")/support/ebpf
for arch in amd64:x86_64 arm64:aarch64; do
  object=$out/entry_${arch%:*}.o
  cpu=${arch#*:}
  # -mcpu=v2: what every kernel from 5.10 on takes. The paths of this machine stay out of the object.
  clang -O2 -g -target bpf -mcpu=v2 "-D__${cpu}__" "-D__$cpu" -std=gnu17 -fno-jump-tables -nostdinc -ffreestanding -Wall -Wno-address-of-packed-member \
    "-ffile-prefix-map=$headers=headers" "-ffile-prefix-map=$PWD=." -I"$headers" -I../../../gadgets/include -c entry.bpf.c -o "$object"
  llvm-strip -g "$object"
done
go list -m -f '{{.Version}}' "$module" >"$out/module_version.txt"
sha256sum entry.bpf.c build.sh >"$out/sources.txt"
sha256sum <../../../gadgets/include/unwind_slot.h >>"$out/sources.txt"
clang --version | head -1 >"$out/compiler.txt"
