#!/bin/bash
# vm.sh runs TestGadgets on a stock Debian kernel, which has the kprobes that some of Inspektor Gadget's
# gadgets need. It boots the kernel in QEMU, without KVM and without a network, into a root file system
# made here. What the test writes, gadgets.md and the captures, comes back into $VM/out.
#
#	VM       scratch folder              build/gadgets-vm
#	SUITE    of Debian, to take the kernel from; empty for the machine's own: bookworm has 6.1, trixie 6.12
#	KERNEL   folder with an unpacked package of Debian's cloud kernel, made if it is missing: build/vm/kernel,
#	         or build/vm/kernel-$SUITE
#	BIN, GADGETS   what "make build gadgets" has built: build/bin, build/gadgets
#	RUN      which tests                 TestGadgets
#	MEM (MiB), SMP, LIMIT (seconds for the guest)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
SUITE=${SUITE:-}
VM=${VM:-$top/build/gadgets-vm} KERNEL=${KERNEL:-$top/build/vm/kernel${SUITE:+-$SUITE}}
BIN=${BIN:-$top/build/bin} GADGETS=${GADGETS:-$top/build/gadgets}
: "${RUN:=TestGadgets}" "${MEM:=1536}" "${SMP:=2}" "${LIMIT:=1800}"
mkdir -p "$VM"
VM=$(cd "$VM" && pwd)
root=$VM/root out=$VM/out
export PATH=$PATH:/usr/sbin:/sbin

"$top/.ci/packages" qemu-system-x86 busybox-static e2fsprogs clang llvm libbpf-dev linux-libc-dev libc6-dev
(cd "$top" && .ci/headers)

if ! ls "$KERNEL"/boot/vmlinuz-* >/dev/null 2>&1; then
	mkdir -p "$VM/deb" "$KERNEL"
	from=()
	if [ -n "$SUITE" ]; then # lists of their own: nothing of the suite gets on to this machine
		uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -1)
		mkdir -p "$VM"/apt/{lists,cache}/partial
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $SUITE main" >"$VM/apt/sources.list"
		from=(-o "Dir::Etc::SourceList=$VM/apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$VM/apt/lists"
			-o "Dir::Cache=$VM/apt/cache" -o Dir::State::status=/dev/null)
		apt-get update -qq "${from[@]}"
	fi
	package=$(apt-cache "${from[@]}" depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p' | head -1)
	(cd "$VM/deb" && apt-get download -qq -o APT::Sandbox::User=root "${from[@]}" "$package" && dpkg -x linux-image-*.deb "$KERNEL")
	rm -rf "$VM/deb" "$VM/apt"
fi

# The guest has no compiler: the programs and the gadgets are built on this side.
rm -rf "$root" "$out"
mkdir -p "$root"/{bin,sbin,lib,lib64,usr/bin,dev,proc,sys,tmp,run,etc,out/gadgets,root,var/lib,test/testdata,prebuilt} "$out"
CGO_ENABLED=0 go -C "$top" test -c -tags e2e -o "$root/test/gadgets.test" ./test/gadgets
(cd "$here" && E2E_PREBUILD=$root/prebuilt E2E_BIN=$BIN E2E_GADGETS=$GADGETS "$root/test/gadgets.test" -test.run TestPrebuild)

# put FILE TARGET copies a program and the libraries that it names into the root.
put() {
	cp -L "$1" "$root$2"
	local library
	for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*' || true); do
		case $library in "$root"/*) continue ;; esac
		mkdir -p "$root${library%/*}"
		cp -Lu "$library" "$root$library"
	done
}
put "$(command -v busybox)" /bin/busybox
for applet in $("$root/bin/busybox" --list | grep -vx busybox); do ln -s busybox "$root/bin/$applet"; done
put /sbin/ldconfig /sbin/ldconfig
put "$BIN/ig" /usr/bin/ig
for program in "$root"/prebuilt/*; do
	case $program in *.tar | *.so) ;; *) put "$program" "/prebuilt/${program##*/}" 2>/dev/null || true ;; esac
done
cp "$GADGETS"/*.tar "$root/out/gadgets/"
echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
echo root:x:0: >"$root/etc/group"
echo 127.0.0.1 localhost >"$root/etc/hosts"
: >"$root/etc/resolv.conf"
ldconfig -r "$root"
cat >"$root/init" <<EOI
#!/bin/sh
export PATH=/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs tmp /tmp; mount -t tmpfs run /run; mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug; mount -t tracefs tracefs /sys/kernel/tracing; mount -t bpf bpf /sys/fs/bpf
ip link set lo up
cd /test
E2E_BIN=/usr/bin E2E_GADGETS=/out/gadgets E2E_PREBUILT=/prebuilt GADGET_TAG=${GADGET_TAG:-dev} ./gadgets.test -test.v -test.timeout 30m -test.run '$RUN' >/out/test.log 2>&1
echo \$? >/out/rc
dmesg >/out/dmesg
tar -C /out -cf /dev/nvme1n1 .
sync; poweroff -f
EOI
chmod +x "$root/init"
size=$(du -sm "$root" | cut -f1)
rm -f "$VM"/{root,out}.img
mke2fs -q -F -t ext4 -O ^has_journal -d "$root" "$VM/root.img" $((size * 5 / 4 + 512))M >/dev/null
truncate -s 512M "$VM/out.img"

# One thread emulates all CPUs: with thread=multi QEMU hangs now and then. QEMU 7.2 gets the flags of cmpxchg16b wrong,
# which newer kernels end with; without it (cx16) they do not use it. panic=-1 with -no-reboot ends
# QEMU on a panic.
qemu=
finish() {
	local status=$?
	trap - EXIT
	[ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
	rm -rf "$root" "$VM"/*.img
	exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM
status=0
timeout "$LIMIT" qemu-system-x86_64 -accel tcg,thread=single -cpu max,-cx16 -M q35 -smp "$SMP" -m "$MEM" \
	-nodefaults -display none -no-reboot -serial "file:$VM/console.log" -kernel "$(echo "$KERNEL"/boot/vmlinuz-*)" \
	-append "console=ttyS0 root=/dev/nvme0n1 rw init=/init panic=-1 mitigations=off quiet" \
	-drive "file=$VM/root.img,if=none,id=root,format=raw,cache=unsafe" -device nvme,serial=root,drive=root \
	-drive "file=$VM/out.img,if=none,id=out,format=raw,cache=unsafe" -device nvme,serial=out,drive=out &
qemu=$!
wait "$qemu" || status=$?
qemu=
[ $status = 0 ] || echo "QEMU ended with $status (124: longer than $LIMIT s)" >&2
tar -C "$out" -xf "$VM/out.img" 2>/dev/null || true
if [ ! -s "$out/rc" ]; then
	tail -20 "$VM/console.log" >&2
	echo "vm.sh: the guest gave no result; above is the end of its console" >&2
	exit 1
fi
cat "$out/test.log"
exit "$(cat "$out/rc")"
