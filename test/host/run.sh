#!/bin/bash
# run.sh tests the packages of this host: it compares what the rpm and the deb hold, and installs, starts, upgrades and removes the
# deb in a small Debian with systemd on Debian's own kernel, in QEMU, without KVM and without a network. guest.sh runs there. It
# needs root and Debian's packages; nothing is left running.
#
#	HOST    scratch folder                    build/host
#	PACKAGE folder of the packages            build/package
#	LIMIT (seconds for the guest), MEM (MiB), SMP
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
HOST=${HOST:-$top/build/host} PACKAGE=${PACKAGE:-$top/build/package}
: "${LIMIT:=1800}" "${MEM:=1536}" "${SMP:=2}" "${SUITE:=bookworm}"
mkdir -p "$HOST"
HOST=$(cd "$HOST" && pwd)
root=$HOST/root out=$HOST/out
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
	rm -rf "$root" "$HOST"/*.img
	printf '\nseconds per stage\n%s' "$times"
	exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

deb=$(echo "$PACKAGE"/*.deb) rpm=$(echo "$PACKAGE"/*.rpm)

# compare wants the same files, modes, scripts, configuration files and dependencies in the rpm as in the deb. Links have no mode
# that counts.
compare() {
	dpkg-deb -c "$deb" | awk '{ print $1, $6 ($7 == "->" ? " -> " $8 : "") }' | grep -v '^d' | sed 's# \./# /#; s/^l[^ ]*/link/' | sort >"$HOST/deb.files"
	rpm -qp --nosignature --qf '[%{FILEMODES:perms} %{FILENAMES} %{FILELINKTOS}\n]' "$rpm" | sed 's/ *$//' |
		awk '{ print $1, $2 (NF > 2 ? " -> " $3 : "") }' | grep -v '^d' | sed 's/^l[^ ]*/link/' | sort >"$HOST/rpm.files"
	diff "$HOST/deb.files" "$HOST/rpm.files" || die "the files of the deb (<) and of the rpm (>) differ"
	echo "the same $(wc -l <"$HOST/deb.files") files with the same modes:"
	cat "$HOST/deb.files"
	diff <(dpkg-deb -I "$deb" conffiles | sort) <(rpm -qp --nosignature --configfiles "$rpm" | sort) || die "the configuration files differ"
	local script
	for script in postinst prerm postrm; do
		dpkg-deb -I "$deb" $script >"$HOST/deb.$script"
	done
	rpm -qp --nosignature --scripts "$rpm" >"$HOST/rpm.scripts"
	for script in postinst prerm postrm; do
		# rpm prints them one after the other, without their first line.
		tail -n +2 "$HOST/deb.$script" | while IFS= read -r line; do
			[ -z "$line" ] || grep -qxF -- "$line" "$HOST/rpm.scripts" || die "the rpm's scripts lack the deb's $script line: $line"
		done
	done
	[ -z "$(dpkg-deb -f "$deb" Depends)" ] || die "the deb depends on $(dpkg-deb -f "$deb" Depends)"
	local needs
	needs=$(rpm -qp --nosignature --requires "$rpm" | grep -v '^rpmlib(\|^/bin/sh\|^config(' || true)
	[ -z "$needs" ] || die "the rpm depends on: $needs"
	echo "the same scripts and configuration files; neither depends on another package"
	rpm -qp --nosignature -i "$rpm"
}

packages() {
	local policy=/usr/sbin/policy-rc.d created= status=0
	if [ ! -e $policy ]; then
		printf '#!/bin/sh\nexit 101\n' >$policy # no service of a package starts here
		chmod +x $policy
		created=1
	fi
	"$top/.ci/packages" qemu-system-x86 e2fsprogs mmdebstrap rpm gcc libc6-dev || status=$?
	[ -z "$created" ] || rm -f $policy
	return $status
}

# kernel unpacks Debian's cloud kernel, which has NVMe and ext4 built in: it boots without an initramfs.
kernel() {
	ls "$HOST"/kernel/boot/vmlinuz-* >/dev/null 2>&1 && return
	local package
	package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p')
	mkdir -p "$HOST/deb"
	(cd "$HOST/deb" && apt-get download -qq -o APT::Sandbox::User=root "$package" && dpkg -x linux-image-*.deb "$HOST/kernel")
	rm -rf "$HOST/deb"
}

programs() {
	gcc -static -O0 -g -o "$HOST/burn" "$top/test/vm/guest/burn.c"
	go -C "$top" build -trimpath -buildvcs=false -o "$HOST/receive" ./test/vm/receive
	# The same files under the next version, for the upgrade.
	rm -rf "$HOST/next"
	dpkg-deb -R "$deb" "$HOST/next"
	sed -i "s/^Version: .*/&+next/" "$HOST/next/DEBIAN/control"
	dpkg-deb --root-owner-group -Znone -b "$HOST/next" "$HOST/next.deb" >/dev/null
	rm -rf "$HOST/next"
}

debian() {
	[ -s "$HOST/debian.tar" ] || mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus "$SUITE" "$HOST/debian.tar"
}

disk() {
	rm -rf "$root" "$out"
	mkdir -p "$root" "$out"
	tar -C "$root" --exclude=./dev/* -xf "$HOST/debian.tar"
	mkdir -p "$root/test/out"
	cp "$deb" "$root/test/first.deb"
	cp "$HOST/next.deb" "$HOST/burn" "$HOST/receive" "$here/guest.sh" "$root/test/"
	echo host1 >"$root/etc/hostname"
	echo "127.0.0.1 localhost host1" >"$root/etc/hosts"
	: >"$root/etc/fstab"
	cat >"$root/etc/systemd/system/package-test.service" <<-'EOU'
		[Unit]
		After=multi-user.target
		[Service]
		Type=oneshot
		ExecStart=/bin/bash -c 'bash /test/guest.sh >/test/out/transcript 2>&1; echo $? >/test/out/rc; journalctl -b >/test/out/journal; tar -C /test/out -cf /dev/nvme1n1 .; sync'
		ExecStopPost=/bin/systemctl --force --force poweroff
		StandardOutput=journal+console
		[Install]
		WantedBy=default.target
	EOU
	mkdir -p "$root/etc/systemd/system/default.target.wants"
	ln -sf ../package-test.service "$root/etc/systemd/system/default.target.wants/package-test.service"
	ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
	local size
	size=$(du -sm "$root" | cut -f1)
	rm -f "$HOST"/{root,out}.img
	mke2fs -q -F -t ext4 -O ^has_journal -d "$root" "$HOST/root.img" $((size * 5 / 4 + 1500))M >/dev/null
	truncate -s 64M "$HOST/out.img"
}

# boot runs the guest to its end; see test/vm/run.sh for its options.
boot() {
	local status=0
	timeout "$LIMIT" qemu-system-x86_64 -accel tcg,thread=single -cpu max -M q35 -smp "$SMP" -m "$MEM" \
		-nodefaults -display none -no-reboot -serial "file:$HOST/console.log" -kernel "$(echo "$HOST"/kernel/boot/vmlinuz-*)" \
		-append "console=ttyS0 root=/dev/nvme0n1 rw panic=-1 mitigations=off quiet systemd.mask=serial-getty@ttyS0.service" \
		-drive "file=$HOST/root.img,if=none,id=root,format=raw,cache=unsafe" -device nvme,serial=root,drive=root \
		-drive "file=$HOST/out.img,if=none,id=out,format=raw,cache=unsafe" -device nvme,serial=out,drive=out &
	qemu=$!
	wait "$qemu" || status=$?
	qemu=
	[ $status = 0 ] || echo "QEMU ended with $status (124: longer than $LIMIT s)" >&2
	tar -C "$out" -xf "$HOST/out.img" 2>/dev/null || true
	cat "$out/transcript" 2>/dev/null || true
	if [ "$(cat "$out/rc" 2>/dev/null)" != 0 ]; then
		tail -20 "$HOST/console.log" >&2
		tail -40 "$out/journal" >&2 || true
		die "the guest failed; its files are in $out, its console is $HOST/console.log"
	fi
}

stage packages packages
stage "rpm and deb" compare
stage kernel kernel
stage programs programs
stage debian debian
stage "root file system" disk
stage "virtual machine" boot
