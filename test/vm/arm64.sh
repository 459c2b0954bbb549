#!/bin/bash
# arm64.sh starts ig, the unwinder and three gadgets once on arm64. It boots Debian's kernel in QEMU, with a C and a Go program to
# profile. A Go test outside checks that their functions have arrived. This needs root and Debian's packages, and leaves nothing
# running.
#
#	VM       scratch folder              build/vm-arm64
#	GADGETS  results of "make gadgets", for both architectures: build/gadgets
#	GADGET_TAG their tag                 dev
#	SUITE    of Debian                   trixie
#	SECONDS_OF_RUN of each gadget, MEM (MiB), SMP, LIMIT (seconds for the guest)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
VM=${VM:-$top/build/vm-arm64} GADGETS=${GADGETS:-$top/build/gadgets} LDFLAGS=${LDFLAGS:-}
: "${SUITE:=trixie}" "${SECONDS_OF_RUN:=40}" "${MEM:=2048}" "${SMP:=2}" "${LIMIT:=1800}"
mkdir -p "$VM"
VM=$(cd "$VM" && pwd)
root=$VM/root out=$VM/out
export PATH=$PATH:/usr/sbin:/sbin CGO_ENABLED=0
. "$here/qemu.sh"

programs() {
	export GOARCH=arm64
	go -C "$top" build -buildvcs=false -ldflags "$LDFLAGS" -o "$VM/ig" ./cmd/ig
	go -C "$top/cmd/unwinder" build -buildvcs=false -o "$VM/unwinder" .
	go -C "$top" build -buildvcs=false -o "$VM/receive" ./test/vm/receive
	go -C "$top" build -buildvcs=false -o "$VM/burn-go" ./test/e2e/burn
	unset GOARCH
	# On arm64, a function without calls saves no frame by default. Then frame pointers do not lead to its caller.
	aarch64-linux-gnu-gcc -static -O0 -g -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -o "$VM/burn-c" "$here/guest/burn.c"
}

disk() {
	rm -rf "$root" "$out"
	mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,etc,out,root,usr/bin,usr/sbin,sbin,var/lib} "$out"
	cp "$VM/busybox/bin/busybox" "$root/bin/busybox"
	local applet
	# This machine cannot run it to list its applets.
	for applet in sh mount ip hostname dmesg tar sync poweroff sleep cat kill uname cut tee; do ln -s busybox "$root/bin/$applet"; done
	cp "$VM"/{ig,unwinder,receive,burn-go,burn-c} "$root/usr/bin/"
	cp "$GADGETS"/*.tar "$root/"
	cp "$here/guest/arm64.sh" "$root/guest.sh"
	names testvm
	printf "SECONDS_OF_RUN=%s\nGADGET_TAG=%s\n" "$SECONDS_OF_RUN" "${GADGET_TAG:-dev}" >"$root/env"
	init 'sh /guest.sh; echo $? >/out/rc'
	images 512
}

boot() {
	MACHINE=arm64 guest "$VM/kernel-$SUITE" cortex-a72 init=/init
	cat "$out/times" 2>/dev/null || true
	[ "$(cat "$out/rc")" = 0 ] || die "the guest failed; its files are in $out"
}

stage packages "$top/.ci/packages" qemu-system-arm e2fsprogs gcc-aarch64-linux-gnu libc6-dev-arm64-cross
stage kernel kernel "$VM/kernel-$SUITE" "$SUITE" arm64
stage busybox unpack "$VM/busybox" busybox-static bookworm arm64
stage programs programs
stage "root file system" disk
stage "virtual machine" boot
ARM64_OUT=$out stage check go -C "$top" test -count=1 -v -run TestARM64 ./test/vm
