#!/bin/bash
# run.sh tests ig with real containers on a stock Debian kernel. ig finds containers by kprobes and fanotify, which this kernel
# has. The script makes a root file system and boots the kernel in QEMU, without KVM and without a network. guest/guest.sh runs
# there as root. A Go test outside then checks the received data. Only Debian packages are installed, and nothing is left running.
#
#	VM       scratch folder              build/vm
#	IG       ig of this project          build/bin/ig
#	PROFILE  the command profile         build/bin/profile
#	GADGET   the profile_cpu image       build/gadgets/profile_cpu.tar
#	ALLOC, LOCK images profile_alloc, profile_lock, beside GADGET
#	GADGET_TAG their tag                dev
#	MALLOC   Inspektor Gadget's trace_malloc build/ig-gadgets/trace_malloc.tar
#	RUN      languages: only whole stacks; memory: only profile_alloc and profile_lock; malloc: only trace_malloc
#	SECONDS_OF_RUN, SECONDS_OF_LANGUAGES (after the last container has started), MEM (MiB), SMP, LIMIT (seconds for the guest)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
RUN=${RUN:-} VM=${VM:-$top/build/vm} IG=${IG:-$top/build/bin/ig} GADGET=${GADGET:-$top/build/gadgets/profile_cpu.tar}
PROFILE=${PROFILE:-$top/build/bin/profile}
ALLOC=${ALLOC:-${GADGET%/*}/profile_alloc.tar} LOCK=${LOCK:-${GADGET%/*}/profile_lock.tar}
MALLOC=${MALLOC:-$top/build/ig-gadgets/trace_malloc.tar}
: "${SECONDS_OF_RUN:=10}" "${SECONDS_OF_LANGUAGES:=90}"
# One thread of QEMU emulates all CPUs. With two, each waits for up to a tenth of a second whenever it interrupts the other.
# Containers then take five times as long to start. If a start takes longer than 15 seconds, ig never sees the container.
if [ "$RUN" = languages ]; then : "${MEM:=2048}" "${SMP:=2}"; else : "${MEM:=1024}" "${SMP:=1}"; fi
: "${LIMIT:=1800}"
mkdir -p "$VM"
VM=$(cd "$VM" && pwd)
root=$VM/root out=$VM/out
export PATH=$PATH:/usr/sbin:/sbin CGO_ENABLED=0

. "$here/qemu.sh"

# kernels requires the kernel's features that ig needs to find containers, and that the guest needs to boot.
kernels() {
	kernel "$VM/kernel"
	local option
	for option in KPROBES BPF_EVENTS DEBUG_INFO_BTF FANOTIFY_ACCESS_PERMISSIONS BLK_DEV_NVME EXT4_FS; do
		grep -q "^CONFIG_$option=y" "$VM"/kernel/boot/config-* || die "the kernel lacks CONFIG_$option"
	done
}

programs() {
	# With optimization, leaf functions would have no frame, and stacks would lack their callers.
	gcc -static -O0 -g -o "$VM/burn" "$here/guest/burn.c"
	# Distributions build programs in this way. Callers of malloc are found without frame pointers, in a libc that the image's
	# containers share.
	gcc -O2 -fomit-frame-pointer -pthread -o "$VM/allocate" "$here/guest/allocate.c"
	gcc -O2 -fomit-frame-pointer -o "$VM/shares-c" "$here/guest/shares.c"
	local program
	for program in crirun receive; do
		go -C "$top" build -buildvcs=false -o "$VM/$program" "./test/vm/$program"
	done
	[ "$RUN" != languages ] || go -C "$top" run -buildvcs=false ./test/vm/programs "$VM/loads" /loads c python java
	go -C "$top/cmd/imagebuild" build -buildvcs=false -o "$VM/imagebuild" .
	local name
	for name in burn pause; do
		"$VM/imagebuild" -manifest "$here/guest/$name.yaml" -file "burn=$VM/burn" -ref "test.local/$name:1" -archive "$VM/$name.tar"
	done
	"$VM/imagebuild" -manifest "$here/guest/allocate.yaml" -file "allocate=$VM/allocate" -file loader=/lib64/ld-linux-x86-64.so.2 \
		-file libc=/lib/x86_64-linux-gnu/libc.so.6 -ref test.local/allocate:1 -archive "$VM/allocate.tar"
}

# languages copies this machine's Python and Java, and the programs that they run.
languages() {
	local program file java
	mkdir -p "$root/loads"
	cp -r "$VM"/loads/. "$root/loads"
	for program in "$VM"/loads/*/args; do
		read -r file _ <"$program"
		case $file in /loads/*) file=$VM$file ;; *) mkdir -p "$root${file%/*}" ;; esac
		put "$file" "${file#"$VM"}"
	done
	read -r file _ <"$VM/loads/java/args"
	java=${file%/bin/java}
	mkdir -p "$root$java/lib"
	cp -rL "$java/conf" "$root$java/"
	for file in "$java"/lib/*; do
		case $file in
		*/ct.sym | */src.zip) ;;
		*.so) put "$file" "$file" ;;
		*) cp -rL "$file" "$root$file" ;;
		esac
	done
	put "$java/lib/server/libjvm.so" "$java/lib/server/libjvm.so"
}

# malloc copies trace_malloc, the programs that it watches, and the list of libraries in which Inspektor Gadget finds the C
# library.
malloc() {
	cp "$MALLOC" "$root/trace_malloc.tar"
	put "$VM/shares-c" /shares-c
	cp "$here/guest/shares.py" "$root/"
	ln -s "$(readlink -f /usr/bin/python3)" "$root/shares-python"
	printf '/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n' >"$root/etc/ld.so.conf"
	ldconfig -r "$root"
}

disk() {
	rm -rf "$root" "$out"
	mkdir -p "$root"/{bin,sbin,lib,lib64,usr/bin,usr/sbin,dev,proc,sys,tmp,run,etc,out,root,gadgets,var/lib,var/log/pods} "$out"
	put "$(command -v busybox)" /bin/busybox
	local applet
	for applet in $("$root/bin/busybox" --list | grep -vx busybox); do ln -s busybox "$root/bin/$applet"; done
	local program
	for program in containerd containerd-shim-runc-v2 ctr; do put "$(command -v $program)" /usr/bin/$program; done
	put "$(command -v runc)" /usr/sbin/runc # ig watches this path
	put "$IG" /usr/bin/ig
	put "$PROFILE" /usr/bin/profile
	put "${IG%/*}/unwinder" /usr/bin/unwinder
	case $RUN in languages | malloc)
		python "$(readlink -f /usr/bin/python3)"
		"$RUN"
		;;
	esac
	put "$VM/crirun" /usr/bin/crirun
	put "$VM/receive" /usr/bin/receive
	cp "$GADGET" "$root/gadget.tar"
	cp "$GADGET" "$root/gadgets/profile_cpu.tar"
	cp "$ALLOC" "$root/profile_alloc.tar"
	cp "$LOCK" "$root/profile_lock.tar"
	cp "$VM"/{burn,pause,allocate}.tar "$here"/guest/{guest,languages,memory,malloc}.sh "$root/"
	cp "$VM"/kernel/lib/modules/*/kernel/fs/overlayfs/overlay.ko "$root/lib/"
	names testvm
	printf "RUN=%s\nSECONDS_OF_RUN=%s\nSECONDS_OF_LANGUAGES=%s\nGADGET_TAG=%s\n" "$RUN" "$SECONDS_OF_RUN" "$SECONDS_OF_LANGUAGES" "${GADGET_TAG:-dev}" >"$root/env"
	init 'insmod /lib/overlay.ko; sh /guest.sh; echo $? >/out/rc'
	images 256
}

boot() {
	guest "$VM/kernel" max init=/init
	cat "$out/times" 2>/dev/null || true
	if [ "$(cat "$out/rc")" != 0 ]; then
		tail -n 20 "$out"/{,languages/}ig.err "$out"/memory/*.err "$out"/{,languages/}receive.log "$out/containerd.log" >&2 || true
		die "the guest failed; its files are in $out"
	fi
}

interpreters=
case $RUN in
languages) interpreters="python3 default-jdk-headless" ;;
malloc) interpreters=python3 ;;
esac
# shellcheck disable=SC2086 # words of their own
stage packages "$top/.ci/packages" qemu-system-x86 containerd runc busybox-static e2fsprogs gcc libc6-dev $interpreters
stage kernel kernels
stage programs programs
stage "root file system" disk
stage "virtual machine" boot
if [ "$RUN" != languages ]; then
	run=.
	[ "$RUN" != memory ] || run=TestMemoryAndLocks
	[ "$RUN" != malloc ] || run=TestTraceMalloc
	VM_OUT=$out stage check go -C "$top" test -count=1 -v -run "$run" ./test/vm
	exit
fi
VM_OUT=$out stage "check of whole stacks" go -C "$top" test -tags e2e -count=1 -v -run TestVirtualMachine ./test/polyglot
