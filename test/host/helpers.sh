# helpers.sh has the functions that guest.sh and by-hand.sh share. Both run as root on a host where somebody installs the
# package. Their output is the transcript.
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
# wait_for WHAT COMMAND... waits long, because an emulated machine is slow.
wait_for() {
	local what=$1 i=0
	shift
	until "$@" >/dev/null 2>&1; do
		i=$((i + 1))
		[ $i -lt 600 ] || die "a wait timed out: $what"
		sleep 2
	done
	echo "-- $what [$(cut -d' ' -f1 /proc/uptime) s]"
}
size() { stat -c %s out/profiles.jsonl 2>/dev/null || echo 0; }
grown() { [ "$(size)" -gt "$1" ]; }
# burns requires the program's function in the data after the given position.
burns() { tail -c +$(($1 + 1)) out/profiles.jsonl | grep -q burn_inner; }
# held requires, after the given position, a profile from before the given time (seconds).
held() { tail -c +$(($1 + 1)) out/profiles.jsonl | grep -o '"timeUnixNano":"[0-9]*"' | tr -dc '0-9\n' | awk -v t="$2" '$1 < t * 1e9 { found = 1 } END { exit !found }'; }
stored() { find /var/lib/ig-otel-profiles/queue -type f -name '*.msg' | grep -q .; }
# both makes the service send to the receiver as well.
both() { sed -i 's/^EXPORTER=.*/EXPORTER=history,main/' /etc/default/ig-otel-profiles; }
# kept requires the program's unit among the services in the service's history.
kept() { rm -rf out/history && ig-otel-profile history --since 1m -o out/history | grep -q " burn$"; }
receive() {
	/test/receive -dir out >>out/receive.log 2>&1 &
	receiver=$!
}
apt() { run apt-get -qq -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io "$@"; }
everything() { # prints all files except data of the running system
	find / -xdev \( -path /test -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd -o -path /var/cache -o -path /tmp -o -path /var/tmp \) -prune -o -print | sort
}
programs() { find /sys/fs/bpf -mindepth 1 | sort; }
