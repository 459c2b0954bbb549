# shellcheck shell=bash
# qemu.sh has the functions that tests with a virtual machine share. run.sh and arm64.sh here, test/gadgets/vm.sh and
# test/host/run.sh source it. They set VM, the scratch folder. In it, root is the guest's root file system, and out gets the
# files on its second disk. The guests run without KVM and without a network.
. "$top/test/vm/stages.sh"

die() {
	echo "${0##*/}: $*" >&2
	exit 1
}

qemu=
finish() {
	local status=$?
	trap - EXIT
	[ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
	rm -rf "${root:?}" "$VM"/*.img
	printf '\nseconds per stage\n%s' "$times"
	exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

# unpack FOLDER PACKAGE [SUITE [ARCHITECTURE]] unpacks a Debian package if the folder does not exist. Another suite or
# architecture uses its own package lists, and changes nothing on this machine. The PACKAGE "linux" means the kernel package on
# which linux-image-cloud depends.
unpack() {
	local folder=$1 package=$2 suite=${3:-} arch=${4:-amd64} from=() uri
	[ ! -e "$folder" ] || return 0
	rm -rf "$VM/deb" "$folder.new"
	mkdir -p "$VM/deb" "$folder.new"
	if [ -n "$suite" ]; then
		uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -1)
		mkdir -p "$VM"/apt/{lists,cache}/partial
		: >"$VM/apt/status"
		echo "deb [arch=$arch signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" >"$VM/apt/sources.list"
		from=(-o "Dir::Etc::SourceList=$VM/apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$VM/apt/lists"
			-o "Dir::Cache=$VM/apt/cache" -o "Dir::State::status=$VM/apt/status" -o "APT::Architecture=$arch" -o "APT::Architectures=$arch")
		apt-get update -qq "${from[@]}"
	fi
	if [ "$package" = linux ]; then
		depends() { apt-cache "${from[@]}" depends "linux-image-cloud-$arch" 2>/dev/null | sed -n 's/^ *Depends: //p' | head -1; }
		[ -n "$(depends)" ] || apt-get update -qq "${from[@]}"
		package=$(depends)
	fi
	(cd "$VM/deb" && apt-get download -qq -o APT::Sandbox::User=root "${from[@]}" "$package" && dpkg -x ./*.deb "$folder.new")
	rm -rf "$VM/deb" "$VM/apt"
	mv "$folder.new" "$folder"
}

# kernel FOLDER [SUITE [ARCHITECTURE]] unpacks Debian's cloud kernel. NVMe and ext4 are built in, so it boots without an
# initramfs.
kernel() { unpack "$1" linux "${@:2}"; }

# put FILE TARGET copies a program and its libraries into the root.
put() {
	cp -L "$1" "$root$2"
	libraries "$1"
}

# python copies this machine's Python, without parts that programs seldom need.
python() { # INTERPRETER
	local folder=/usr/lib/${1##*/} file
	put "$1" "$1"
	mkdir -p "$root/usr/lib"
	cp -r "$folder" "$root/usr/lib/"
	rm -rf "$root$folder"/{config-*,test,idlelib,lib2to3,ensurepip}
	for file in "$root$folder"/lib-dynload/*.so; do libraries "$file"; done
}

# libraries FILE copies the libraries of a program or library into the root.
libraries() {
	local library
	for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*' || true); do
		case $library in "$root"/*) continue ;; esac
		mkdir -p "$root${library%/*}"
		cp -Lu "$library" "$root$library"
	done
}

# names writes the files with the users and host name of a small root.
names() { # HOST
	echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
	echo root:x:0: >"$root/etc/group"
	echo 127.0.0.1 localhost >"$root/etc/hosts"
	echo "$1" >"$root/etc/hostname"
	: >"$root/etc/resolv.conf"
}

# init writes the guest's first program. It mounts the usual file systems, runs lines of shell with their exit status in
# /out/rc, and copies /out to the second disk.
init() { # LINES
	cat >"$root/init" <<-EOI
		#!/bin/sh
		export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp
		mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev 2>/dev/null
		mount -t tmpfs tmp /tmp; mount -t tmpfs run /run; mount -t cgroup2 cgroup /sys/fs/cgroup
		mount -t debugfs debugfs /sys/kernel/debug; mount -t tracefs tracefs /sys/kernel/tracing; mount -t bpf bpf /sys/fs/bpf
		ip link set lo up
		hostname -F /etc/hostname
		$1
		dmesg >/out/dmesg
		tar -C /out -cf /dev/nvme1n1 .
		sync; poweroff -f
	EOI
	chmod +x "$root/init"
}

# images makes the guest's disks: its root with some space, and one for its results.
images() { # MIB_OF_SPACE
	local size
	size=$(du -sm "$root" | cut -f1)
	rm -f "$VM"/{root,out}.img
	mke2fs -q -F -t ext4 -O ^has_journal -d "$root" "$VM/root.img" $((size * 5 / 4 + $1))M >/dev/null
	truncate -s 512M "$VM/out.img"
}

# guest KERNEL CPU APPEND... runs the guest to its end and unpacks its results. MACHINE=arm64 selects that architecture. One
# thread emulates all CPUs, because QEMU sometimes hangs with thread=multi. Both CPUs are then in the int3 of a finished kernel
# text patch. mitigations=off saves work. panic=-1 with -no-reboot ends QEMU on a panic. With no_timer_check, the kernel does not
# count ticks at its start. On a busy machine, ticks are late, and it would panic ("IO-APIC + timer doesn't work"). With ICOUNT
# (QEMU's -icount), the guest's clocks count instructions, so its measurements do not depend on this machine's load.
guest() {
	local kernel=$1 cpu=$2 status=0 program=(qemu-system-x86_64 -M q35) console=ttyS0
	shift 2
	if [ "${MACHINE:-}" = arm64 ]; then
		program=(qemu-system-aarch64 -M virt) console=ttyAMA0
	fi
	timeout "$LIMIT" "${program[@]}" -accel tcg,thread=single ${ICOUNT:+-icount "$ICOUNT"} -cpu "$cpu" -smp "$SMP" -m "$MEM" \
		-nodefaults -display none -no-reboot -serial "file:$VM/console.log" -kernel "$(echo "$kernel"/boot/vmlinuz-*)" \
		-append "console=$console root=/dev/nvme0n1 rw panic=-1 mitigations=off no_timer_check quiet $*" \
		-drive "file=$VM/root.img,if=none,id=root,format=raw,cache=unsafe" -device nvme,serial=root,drive=root \
		-drive "file=$VM/out.img,if=none,id=out,format=raw,cache=unsafe" -device nvme,serial=out,drive=out &
	qemu=$!
	wait "$qemu" || status=$?
	qemu=
	[ $status = 0 ] || echo "QEMU ended with $status (124: longer than $LIMIT s)" >&2
	tar -C "$out" -xf "$VM/out.img" 2>/dev/null || true
	[ -s "$out/rc" ] && return
	tail -20 "$VM/console.log" >&2
	die "the guest gave no result; above is the end of its console"
}
