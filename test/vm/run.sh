#!/bin/bash
# run.sh tests ig with real containers on a stock Debian kernel, which has the kprobes and the
# fanotify that ig finds containers with. It boots the kernel in QEMU, without KVM and without a
# network, into a root file system made here; guest/guest.sh runs in it as root. A Go test on this side
# then checks what has arrived. Nothing is installed but Debian packages; nothing is left running.
#
#	VM       scratch folder              build/vm
#	IG       ig of this project          build/bin/ig
#	PROFILE  the command profile         build/bin/profile
#	GADGET   the profile_cpu image       build/gadgets/profile_cpu.tar
#	POLYGLOT the profile_polyglot image build/gadgets/profile_polyglot.tar
#	GADGET_TAG their tag                dev
#	RUN      polyglot: whole stacks, in place of all else
#	SECONDS_OF_RUN, SECONDS_OF_POLYGLOT (after the last container has started), MEM (MiB), SMP, LIMIT (seconds for the guest)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
RUN=${RUN:-} VM=${VM:-$top/build/vm} IG=${IG:-$top/build/bin/ig} GADGET=${GADGET:-$top/build/gadgets/profile_cpu.tar}
PROFILE=${PROFILE:-$top/build/bin/profile} POLYGLOT=${POLYGLOT:-$top/build/gadgets/profile_polyglot.tar}
: "${SECONDS_OF_RUN:=10}" "${SECONDS_OF_POLYGLOT:=90}" "${SMP:=2}"
if [ "$RUN" = polyglot ]; then : "${MEM:=2048}" "${LIMIT:=1800}"; else : "${MEM:=1024}" "${LIMIT:=900}"; fi
mkdir -p "$VM"
VM=$(cd "$VM" && pwd)
root=$VM/root out=$VM/out
export PATH=$PATH:/usr/sbin:/sbin CGO_ENABLED=0

die() {
	echo "run.sh: $*" >&2
	exit 1
}
times=
stage() { # NAME COMMAND...
	local name=$1 start=$SECONDS
	shift
	echo "== $name"
	"$@"
	times+=$(printf '%5d s  %s' $((SECONDS - start)) "$name")$'\n'
}
qemu=
finish() {
	local status=$?
	trap - EXIT
	[ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
	rm -rf "$root" "$VM"/*.img
	printf '\nseconds per stage\n%s' "$times"
	exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

packages() {
	local policy=/usr/sbin/policy-rc.d created=
	if [ ! -e $policy ] && [ "$(id -u)" = 0 ]; then
		printf '#!/bin/sh\nexit 101\n' >$policy # no service of a package starts here
		chmod +x $policy
		created=1
	fi
	local status=0
	"$top/.ci/packages" qemu-system-x86 containerd runc busybox-static e2fsprogs gcc libc6-dev \
		${RUN:+python3 default-jdk-headless} || status=$?
	[ -z "$created" ] || rm -f $policy
	return $status
}

# kernel unpacks Debian's cloud kernel, which has NVMe and ext4 built in: it boots without an initramfs.
kernel() {
	if ! ls "$VM"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
		local package
		package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p')
		if [ -z "$package" ]; then
			apt-get update -qq
			package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p')
		fi
		mkdir -p "$VM/deb"
		(cd "$VM/deb" && apt-get download -qq -o APT::Sandbox::User=root "$package" && dpkg -x linux-image-*.deb "$VM/kernel")
		rm -rf "$VM/deb"
	fi
	local option
	for option in KPROBES BPF_EVENTS DEBUG_INFO_BTF FANOTIFY_ACCESS_PERMISSIONS BLK_DEV_NVME EXT4_FS; do
		grep -q "^CONFIG_$option=y" "$VM"/kernel/boot/config-* || die "the kernel lacks CONFIG_$option"
	done
}

programs() {
	# With optimization leaf functions get no frame, and their callers vanish from the stacks.
	gcc -static -O0 -g -o "$VM/burn" "$here/guest/burn.c"
	local program
	for program in crirun receive; do
		go -C "$top" build -buildvcs=false -o "$VM/$program" "./test/vm/$program"
	done
	[ "$RUN" != polyglot ] || go -C "$top" run -buildvcs=false ./test/vm/programs "$VM/loads" /loads c python java
	go -C "$top/cmd/imagebuild" build -buildvcs=false -o "$VM/imagebuild" .
	local name
	for name in burn pause; do
		"$VM/imagebuild" -manifest "$here/guest/$name.yaml" -file "burn=$VM/burn" -ref "test.local/$name:1" -archive "$VM/$name.tar"
	done
}

# put FILE TARGET copies a program and the libraries that it names into the root.
put() {
	cp -L "$1" "$root$2"
	local library
	for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*' || true); do
		mkdir -p "$root${library%/*}"
		cp -Lu "$library" "$root$library"
	done
}

# languages copies Python and Java, as Debian has them here, and the programs that they run.
languages() {
	local program file java python
	mkdir -p "$root/loads"
	cp -r "$VM"/loads/. "$root/loads"
	for program in "$VM"/loads/*/args; do
		read -r file _ <"$program"
		case $file in /loads/*) file=$VM$file ;; *) mkdir -p "$root${file%/*}" ;; esac
		put "$file" "${file#"$VM"}"
	done
	read -r file _ <"$VM/loads/python/args"
	python=/usr/lib/${file##*/}
	cp -r "$python" "$root/usr/lib/"
	rm -rf "$root$python"/{config-*,test,idlelib,lib2to3,ensurepip}
	read -r file _ <"$VM/loads/java/args"
	java=${file%/bin/java}
	mkdir -p "$root$java/lib"
	cp -rL "$java/conf" "$root$java/"
	for file in "$java"/lib/* "$root$python"/lib-dynload/*.so; do
		case $file in
		*/ct.sym | */src.zip) ;;
		"$root"*) ldd "$file" | grep -o '/[^ ]*' | while read -r program; do mkdir -p "$root${program%/*}" && cp -Lu "$program" "$root$program"; done || true ;;
		*.so) put "$file" "$file" ;;
		*) cp -rL "$file" "$root$file" ;;
		esac
	done
	put "$java/lib/server/libjvm.so" "$java/lib/server/libjvm.so"
}

disk() {
	rm -rf "$root" "$out"
	mkdir -p "$root"/{bin,sbin,lib,lib64,usr/bin,usr/sbin,dev,proc,sys,tmp,run,etc,out,root,gadgets,var/lib,var/log/pods} "$out"
	put "$(command -v busybox)" /bin/busybox
	local applet
	for applet in $("$root/bin/busybox" --list | grep -vx busybox); do ln -s busybox "$root/bin/$applet"; done
	local program
	for program in containerd containerd-shim-runc-v2 ctr; do put "$(command -v $program)" /usr/bin/$program; done
	put "$(command -v runc)" /usr/sbin/runc # a path that ig watches
	put "$IG" /usr/bin/ig
	put "$PROFILE" /usr/bin/profile
	put "${IG%/*}/unwinder" /usr/bin/unwinder
	[ "$RUN" != polyglot ] || languages
	put "$VM/crirun" /usr/bin/crirun
	put "$VM/receive" /usr/bin/receive
	cp "$GADGET" "$root/gadget.tar"
	cp "$GADGET" "$root/gadgets/profile_cpu.tar"
	cp "$POLYGLOT" "$root/polyglot.tar"
	cp "$VM/burn.tar" "$VM/pause.tar" "$here"/guest/{guest,polyglot}.sh "$root/"
	cp "$VM"/kernel/lib/modules/*/kernel/fs/overlayfs/overlay.ko "$root/lib/"
	echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
	echo 127.0.0.1 localhost >"$root/etc/hosts"
	echo testvm >"$root/etc/hostname"
	: >"$root/etc/resolv.conf"
	printf "RUN=%s\nSECONDS_OF_RUN=%s\nSECONDS_OF_POLYGLOT=%s\nGADGET_TAG=%s\n" "$RUN" "$SECONDS_OF_RUN" "$SECONDS_OF_POLYGLOT" "${GADGET_TAG:-dev}" >"$root/env"
	cat >"$root/init" <<-'EOI'
		#!/bin/sh
		export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
		mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev 2>/dev/null
		mount -t tmpfs tmp /tmp; mount -t tmpfs run /run; mount -t cgroup2 cgroup /sys/fs/cgroup
		mount -t debugfs debugfs /sys/kernel/debug; mount -t tracefs tracefs /sys/kernel/tracing; mount -t bpf bpf /sys/fs/bpf
		insmod /lib/overlay.ko
		hostname testvm
		ip link set lo up
		sh /guest.sh; echo $? >/out/rc
		dmesg >/out/dmesg
		tar -C /out -cf /dev/nvme1n1 .
		sync; poweroff -f
	EOI
	chmod +x "$root/init"
	local size
	size=$(du -sm "$root" | cut -f1)
	rm -f "$VM"/{root,out}.img
	mke2fs -q -F -t ext4 -O ^has_journal -d "$root" "$VM/root.img" $((size * 5 / 4 + 256))M >/dev/null
	truncate -s 64M "$VM/out.img"
}

# boot runs the guest to its end. One thread emulates all CPUs: with thread=multi QEMU hangs now and
# then, with both CPUs in the int3 of a kernel text patch that is long finished. mitigations=off
# spares the emulator work; panic=-1 with -no-reboot ends QEMU on a panic.
boot() {
	local status=0
	timeout "$LIMIT" qemu-system-x86_64 -accel tcg,thread=single -cpu max -M q35 -smp "$SMP" -m "$MEM" \
		-nodefaults -display none -no-reboot -serial "file:$VM/console.log" -kernel "$(echo "$VM"/kernel/boot/vmlinuz-*)" \
		-append "console=ttyS0 root=/dev/nvme0n1 rw init=/init panic=-1 mitigations=off quiet" \
		-drive "file=$VM/root.img,if=none,id=root,format=raw,cache=unsafe" -device nvme,serial=root,drive=root \
		-drive "file=$VM/out.img,if=none,id=out,format=raw,cache=unsafe" -device nvme,serial=out,drive=out &
	qemu=$!
	wait "$qemu" || status=$?
	qemu=
	[ $status = 0 ] || echo "QEMU ended with $status (124: longer than $LIMIT s)" >&2
	tar -C "$out" -xf "$VM/out.img" 2>/dev/null || true
	cat "$out/times" 2>/dev/null || true
	if [ ! -s "$out/rc" ]; then
		tail -20 "$VM/console.log" >&2
		die "the guest gave no result; above is the end of its console"
	fi
	if [ "$(cat "$out/rc")" != 0 ]; then
		tail -n 20 "$out"/{,polyglot/}ig.err "$out"/{,polyglot/}receive.log "$out/containerd.log" >&2 || true
		die "the guest failed; its files are in $out"
	fi
}

stage packages packages
stage kernel kernel
stage programs programs
stage "root file system" disk
stage "virtual machine" boot
if [ "$RUN" != polyglot ]; then
	VM_OUT=$out stage check go -C "$top" test -count=1 -v ./test/vm
	exit
fi
VM_OUT=$out stage "check of whole stacks" go -C "$top" test -tags e2e -count=1 -v -run TestVirtualMachine ./test/polyglot
