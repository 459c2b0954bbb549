# helpers.sh is what guest.sh and by-hand.sh share. They run as root on a host on which somebody installs the package. Their output is
# the transcript.
set -eu
cd /test
say() { echo; echo "== $* [$(cut -d' ' -f1 /proc/uptime) s]"; }
die() {
	echo "FAIL: $*"
	systemctl status --no-pager -l ig-otel-profiles || true
	exit 1
}
run() {
	echo "# $*"
	"$@"
}
# wait_for WHAT COMMAND... waits long: an emulated machine is slow.
wait_for() {
	local what=$1 i=0
	shift
	until "$@" >/dev/null 2>&1; do
		i=$((i + 1))
		[ $i -lt 600 ] || die "waited in vain for $what"
		sleep 2
	done
	echo "-- $what [$(cut -d' ' -f1 /proc/uptime) s]"
}
size() { stat -c %s out/profiles.jsonl 2>/dev/null || echo 0; }
grown() { [ "$(size)" -gt "$1" ]; }
# burns wants the function of the program in what arrived behind the given position.
burns() { tail -c +$(($1 + 1)) out/profiles.jsonl | grep -q burn_inner; }
# held wants, behind the given position, a profile of before the given time (seconds).
held() { tail -c +$(($1 + 1)) out/profiles.jsonl | grep -o '"timeUnixNano":"[0-9]*"' | tr -dc '0-9\n' | awk -v t="$2" '$1 < t * 1e9 { found = 1 } END { exit !found }'; }
stored() { find /var/lib/ig-otel-profiles/queue -type f -name '*.msg' | grep -q .; }
# both has the service send to the receiver as well.
both() { sed -i 's/^EXPORTER=.*/EXPORTER=history,main/' /etc/default/ig-otel-profiles; }
# kept wants the unit of the program among the services of what the service has kept.
kept() { rm -rf out/history && ig-otel-profile history --since 5m -o out/history | grep -q " burn$"; }
receive() {
	/test/receive -dir out >>out/receive.log 2>&1 &
	receiver=$!
}
apt() { run apt-get -qq -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io "$@"; }
everything() { # files that are there now, without those of the system at work
	find / -xdev \( -path /test -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd -o -path /var/cache -o -path /tmp -o -path /var/tmp \) -prune -o -print | sort
}
programs() { find /sys/fs/bpf -mindepth 1 | sort; }
