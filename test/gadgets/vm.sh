#!/bin/bash
# vm.sh runs TestGadgets, or tests of another folder, on a stock Debian kernel, which has the kprobes that some of Inspektor
# Gadget's gadgets need. It makes a root file system and boots the kernel in QEMU, without KVM and without a network.
# TestPrebuild builds the files that the guest cannot build.
#
#	VM       scratch folder              build/gadgets-vm
#	SUITE    Debian release of the kernel, empty for this machine's: bookworm has Linux 6.1, trixie 6.12
#	KERNEL   folder with an unpacked package of Debian's cloud kernel, made if it is missing: build/vm/kernel,
#	         or build/vm/kernel-$SUITE
#	BIN, GADGETS   results of "make build gadgets": build/bin, build/gadgets
#	TESTS    folder of test with them    gadgets
#	RUN      tests to run                TestGadgets
#	PAGE     page that the tests write, named by COST_DOC and IG_GADGETS_DOC in the guest
#	APPEND                       more options for the kernel's command line, such as preempt=full
#	MEM (MiB), SMP, LIMIT (seconds for the guest), ICOUNT (see qemu.sh)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
SUITE=${SUITE:-}
VM=${VM:-$top/build/gadgets-vm} KERNEL=${KERNEL:-$top/build/vm/kernel${SUITE:+-$SUITE}}
BIN=${BIN:-$top/build/bin} GADGETS=${GADGETS:-$top/build/gadgets}
: "${PAGE:=}" "${APPEND:=}" "${TESTS:=gadgets}" "${RUN:=TestGadgets}" "${MEM:=1536}" "${SMP:=2}" "${LIMIT:=1800}"
mkdir -p "$VM"
VM=$(cd "$VM" && pwd)
root=$VM/root out=$VM/out
export PATH=$PATH:/usr/sbin:/sbin

. "$top/test/vm/qemu.sh"

"$top/.ci/packages" qemu-system-x86 busybox-static e2fsprogs clang gcc llvm libbpf-dev linux-libc-dev libc6-dev python3
(cd "$top" && .ci/headers)
kernel "$KERNEL" "$SUITE"

# The guest has no compiler, so programs and gadgets are built here.
rm -rf "$root" "$out"
mkdir -p "$root"/{bin,sbin,lib,lib64,usr/bin,dev,proc,sys,tmp,run,etc,out/gadgets,root,var/lib,test/testdata,prebuilt} "$out"
CGO_ENABLED=0 go -C "$top" test -c -tags e2e -o "$root/test/tests" "./test/$TESTS"
(cd "$top/test/$TESTS" && E2E_PREBUILD=$root/prebuilt E2E_BIN=$BIN E2E_GADGETS=$GADGETS "$root/test/tests" -test.run TestPrebuild)
[ -z "$PAGE" ] || cp "$PAGE" "$root/test/page.md"

put "$(command -v busybox)" /bin/busybox
for applet in $("$root/bin/busybox" --list | grep -vx busybox); do ln -s busybox "$root/bin/$applet"; done
put /sbin/ldconfig /sbin/ldconfig
put "$BIN/ig" /usr/bin/ig
put "$BIN/unwinder" /usr/bin/unwinder
for program in "$root"/prebuilt/*; do
	case $program in *.tar | *.so) ;; *) put "$program" "/prebuilt/${program##*/}" 2>/dev/null || true ;; esac
done
for archive in "$GADGETS"/*.tar; do # tests of Inspektor Gadget's own gadgets have none
	[ ! -e "$archive" ] || cp "$archive" "$root/out/gadgets/"
done
if [ "$TESTS" = gadgets ]; then
	python=$(readlink -f /usr/bin/python3)
	python "$python"
	printf "/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n" >"$root/etc/ld.so.conf"
	ln -s "${python##*/}" "$root/usr/bin/python3"
	cp -r "$here/testdata/languages" "$root/test/testdata/"
fi
names testvm
ldconfig -r "$root"
init "cd /test
COST_DOC=page.md IG_GADGETS_DOC=${PAGE:+page.md} E2E_BIN=/usr/bin E2E_GADGETS=/out/gadgets E2E_PREBUILT=/prebuilt GADGET_TAG=${GADGET_TAG:-dev} ./tests -test.v -test.timeout 30m -test.run '$RUN' >/out/test.log 2>&1
echo \$? >/out/rc
cp page.md /out/ 2>/dev/null"
images 512
# QEMU 7.2 computes the flags of cmpxchg16b wrong, which crashes newer kernels. Without cx16, they do not use it.
guest "$KERNEL" max,-cx16 "init=/init $APPEND"
cat "$out/test.log"
[ ! -e "$out/page.md" ] || cp "$out/page.md" "$PAGE"
exit "$(cat "$out/rc")"
