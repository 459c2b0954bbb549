#!/bin/bash
# run.sh tests the host's packages in three steps. It compares the contents of the rpm and the deb. It runs by-hand.sh in a
# container with systemd, on this machine's kernel. In QEMU without KVM, guest.sh installs, starts, upgrades and removes the
# deb, in a small Debian with systemd and Debian's own kernel. The container and the virtual machine have no network. This
# needs root and Debian's packages, and leaves nothing running.
#
#	STEPS   "container" or "machine"         both
#	VM      scratch folder                    build/host
#	PACKAGE folder of the packages            build/package
#	LIMIT (seconds for the guest), MEM (MiB), SMP
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
VM=${VM:-$top/build/host} PACKAGE=${PACKAGE:-$top/build/package}
: "${STEPS:=container machine}" "${LIMIT:=7200}" "${MEM:=1536}" "${SMP:=2}" "${SUITE:=bookworm}"
mkdir -p "$VM"
VM=$(cd "$VM" && pwd)
root=$VM/root out=$VM/out
export PATH=$PATH:/usr/sbin:/sbin CGO_ENABLED=0
. "$top/test/vm/qemu.sh"

deb=$(echo "$PACKAGE"/*.deb) rpm=$(echo "$PACKAGE"/*.rpm)

# compare requires the same files, modes, scripts, configuration files and dependencies in rpm and deb. The modes of links do
# not count.
compare() {
	dpkg-deb -c "$deb" | awk '{ print $1, $6 ($7 == "->" ? " -> " $8 : "") }' | grep -v '^d' | sed 's# \./# /#; s/^l[^ ]*/link/' | sort >"$VM/deb.files"
	rpm -qp --nosignature --qf '[%{FILEMODES:perms} %{FILENAMES} %{FILELINKTOS}\n]' "$rpm" | sed 's/ *$//' |
		awk '{ print $1, $2 (NF > 2 ? " -> " $3 : "") }' | grep -v '^d' | sed 's/^l[^ ]*/link/' | sort >"$VM/rpm.files"
	diff "$VM/deb.files" "$VM/rpm.files" || die "the files of the deb (<) and of the rpm (>) differ"
	echo "the same $(wc -l <"$VM/deb.files") files with the same modes:"
	cat "$VM/deb.files"
	diff <(dpkg-deb -I "$deb" conffiles | sort) <(rpm -qp --nosignature --configfiles "$rpm" | sort) || die "the configuration files differ"
	local script
	for script in postinst prerm postrm; do
		dpkg-deb -I "$deb" $script >"$VM/deb.$script"
	done
	rpm -qp --nosignature --scripts "$rpm" >"$VM/rpm.scripts"
	for script in postinst prerm postrm; do
		# rpm prints scripts one after another, without their first line.
		tail -n +2 "$VM/deb.$script" | while IFS= read -r line; do
			[ -z "$line" ] || grep -qxF -- "$line" "$VM/rpm.scripts" || die "the rpm's scripts lack the deb's $script line: $line"
		done
	done
	[ -z "$(dpkg-deb -f "$deb" Depends)" ] || die "the deb depends on $(dpkg-deb -f "$deb" Depends)"
	local needs
	needs=$(rpm -qp --nosignature --requires "$rpm" | grep -v '^rpmlib(\|^/bin/sh\|^config(' || true)
	[ -z "$needs" ] || die "the rpm depends on: $needs"
	echo "the same scripts and configuration files; neither depends on another package"
	rpm -qp --nosignature -i "$rpm"
}

programs() {
	gcc -static -O0 -g -o "$VM/burn" "$top/test/vm/guest/burn.c"
	go -C "$top" build -trimpath -buildvcs=false -o "$VM/receive" ./test/vm/receive
	# The upgrade installs the same files with the next version.
	rm -rf "$VM/next"
	dpkg-deb -R "$deb" "$VM/next"
	sed -i "s/^Version: .*/&+next/" "$VM/next/DEBIAN/control"
	dpkg-deb --root-owner-group -Znone -b "$VM/next" "$VM/next.deb" >/dev/null
	rm -rf "$VM/next"
}

debian() {
	[ -s "$VM/debian.tar" ] || mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,rpm "$SUITE" "$VM/debian.tar"
}

# system TEST CONSOLE FINISH makes the root file system of a Debian. After booting, it runs a script of this folder with its
# output on CONSOLE, and then FINISH.
system() {
	rm -rf "$root" "$out"
	mkdir -p "$root" "$out"
	tar -C "$root" --exclude=./dev/* -xf "$VM/debian.tar"
	mkdir -p "$root/test/out"
	cp "$deb" "$root/test/first.deb"
	cp "$rpm" "$root/test/first.rpm"
	cp "$top/docs/quickstart/host.md" "$root/test/page.md"
	cp "$VM/next.deb" "$VM/burn" "$VM/receive" "$here"/{helpers,guest,by-hand}.sh "$root/test/"
	echo host1 >"$root/etc/hostname"
	echo "127.0.0.1 localhost host1" >"$root/etc/hosts"
	: >"$root/etc/fstab"
	cat >"$root/etc/systemd/system/package-test.service" <<-EOU
		[Unit]
		After=multi-user.target
		[Service]
		Type=oneshot
		ExecStart=/bin/bash -c 'set -o pipefail; bash /test/$1 2>&1 | tee /test/out/transcript >$2; echo \$\$? >/test/out/rc; journalctl -b >/test/out/journal; $3'
		ExecStopPost=/bin/systemctl --force --force poweroff
		StandardOutput=journal+console
		[Install]
		WantedBy=default.target
	EOU
	mkdir -p "$root/etc/systemd/system/default.target.wants"
	ln -sf ../package-test.service "$root/etc/systemd/system/default.target.wants/package-test.service"
	ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
}
disk() {
	system guest.sh /dev/ttyS0 'tar -C /test/out -cf /dev/nvme1n1 .; sync'
	images 1500
}

# container runs by-hand.sh with a host's rights, but outside of this machine's own systemd, if any.
container() {
	local log=$VM/container.log
	system by-hand.sh /dev/null true
	SYSTEMD_SECCOMP=0 timeout "$LIMIT" systemd-nspawn --quiet -D "$root" --register=no --keep-unit --private-network --capability=all \
		--bind-ro=/sys/kernel/btf --bind=/sys/fs/bpf --boot </dev/null >"$log" 2>&1 || true
	cp -a "$root/test/out/." "$out/"
	passed "$log"
}

# boot lets systemd wait without limit for its services, because an emulated machine on a busy one is slow.
boot() {
	guest "$VM/kernel" max systemd.mask=serial-getty@ttyS0.service systemd.service_watchdogs=no systemd.default_timeout_start_sec=3600
	passed "$VM/console.log"
}

passed() { # CONSOLE
	cat "$out/transcript" || true
	if [ "$(cat "$out/rc")" != 0 ]; then
		tail -20 "$1" >&2
		tail -40 "$out/journal" >&2 || true
		die "the guest failed; its files are in $out, its console is $1"
	fi
}

stage packages "$top/.ci/packages" mmdebstrap rpm gcc libc6-dev
stage "rpm and deb" compare
stage programs programs
stage debian debian
if [[ $STEPS == *container* ]]; then
	stage packages "$top/.ci/packages" systemd-container
	stage container container
fi
if [[ $STEPS == *machine* ]]; then
	stage packages "$top/.ci/packages" qemu-system-x86 e2fsprogs
	stage kernel kernel "$VM/kernel"
	stage "root file system" disk
	stage "virtual machine" boot
fi
