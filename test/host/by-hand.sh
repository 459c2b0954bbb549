# by-hand.sh runs in the container with systemd. It runs the commands of the man page and of the guide unchanged. Then it tests
# the service without whole stacks, and the rpm.
. /test/helpers.sh

# examples FILE BEGIN END runs each block of commands between lines that match BEGIN and END, and then the function "after".
examples() {
	local block
	rm -f out/block.*
	awk -v b="$2" -v e="$3" '$0 ~ e { on = 0 } on { print > ("out/block." n) } $0 ~ b { on = 1; n = sprintf("%02d", n + 1) }' "$1"
	for block in out/block.*; do
		[ -s "$block" ] || die "no examples in $1"
		sed 's/^/# /' "$block"
		at=$(size)
		bash -euo pipefail "$block" >out/said 2>&1 || { cat out/said; die "an example of $1 failed"; }
		cat out/said
		after "$(cat "$block")"
	done
}
# after checks the result of a block of commands.
after() {
	case $1 in
	*systemctl\ restart*)
		wait_for "the old daemon's data in the queue" stored
		now=$(date +%s)
		receive
		wait_for "the old daemon's stored data at the receiver" held "$at" "$now"
		;;
	*exporter=main*) wait_for "profiles at the receiver" grown "$at" ;;
	esac
	case $1 in
	*gadgetctl\ delete*) ! running || die "the daemon still runs it" ;;
	*gadgetctl\ list*) wait_for "the run in the daemon's list" running ;;
	*gadgetctl\ attach*) gone ;;
	esac
}
running() { gadgetctl list | grep -q Running; }
# leave ends the receiver, which then writes its findings.
leave() {
	kill $receiver
	wait $receiver || true
	[ ! -s out/findings ] || die "the receiver found: $(cat out/findings)"
}
# gone removes the receiver until the daemon has restarted.
gone() {
	leave
	wait_for "a request in the queue's folder" stored
}

# systemd does this if it is not in a container.
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
receive
systemd-run --quiet --unit=burn /test/burn

say "the deb: $(. /etc/os-release; echo "$PRETTY_NAME"), kernel $(uname -r), $(systemctl --version | head -1)"
run dpkg -i /test/first.deb
grep -q 'GNU GENERAL PUBLIC LICENSE' /usr/share/doc/ig-otel-profiles/copyright || die "the copyright has no text of the GPL"

say "the man page's examples"
zcat /usr/share/man/man8/ig-otel-profiles.8.gz | sed 's/\\-/-/g' >out/man
examples out/man '^[.]EX' '^[.]EE'
ls /tmp/look/*.html >/dev/null || die "no flame graph"
run ig-otel-profiles image list
systemctl stop ig-otel-profiles-daemon

say "the page's commands"
sed -n '/^## By hand/,/^## Limits and rights/p' page.md >out/page
examples out/page '^```sh tested' '^```$'
! gadgetctl run profile_offcpu --host --detach --otel-profiles-exporter=mian >out/said 2>&1 || die "gadgetctl accepted an unknown exporter"
grep 'unknown exporter "mian": the known exporters are history, main' out/said || { cat out/said; die "the error message does not name the cause"; }
systemctl stop ig-otel-profiles-daemon
journalctl --no-pager -o cat -u ig-otel-profiles-daemon | grep 'rows read' || die "no summary of a run that has ended"
mkdir -p /run/systemd/system/ig-otel-profiles-daemon.service.d
printf '[Service]\nExecStart=\nExecStart=/bin/false\n' >/run/systemd/system/ig-otel-profiles-daemon.service.d/exits.conf
systemctl daemon-reload
status=0
timeout 60 systemctl start ig-otel-profiles-daemon || status=$?
[ "$status" = 1 ] || die "systemctl start returned $status for a daemon that exits at once"
systemctl stop ig-otel-profiles-daemon
rm -r /run/systemd/system/ig-otel-profiles-daemon.service.d
systemctl daemon-reload

say "the service without whole stacks"
run systemctl start ig-otel-profiles
wait_for "the unit of a program in the history" kept
run ig-otel-profile history list
[ "$(stat -c %a /var/lib/ig-otel-profiles/history)" = 700 ] || die "the history is open to others"
at=$(size)
both
run systemctl restart ig-otel-profiles
journalctl --no-pager -o cat -u ig-otel-profiles | grep 'level=warning.*stacks use frame pointers' || die "no warning that names the cause"
wait_for "profiles of the service" grown "$at"
run dpkg -P ig-otel-profiles
! systemctl is-active --quiet ig-otel-profiles || die "the service still runs"

say "the rpm"
run rpm -i --nodeps --nosignature /test/first.rpm
[ "$(systemctl is-active ig-otel-profiles || true)" = inactive ] || die "the installation has started the service"
at=$(size)
both
run systemctl enable --now ig-otel-profiles
wait_for "profiles of the rpm's service" grown "$at"
sed -i 's/interval: 10s/interval: 5s/' /etc/ig-otel-profiles/config.yaml
pid=$(systemctl show -P MainPID ig-otel-profiles)
run rpm -U --force --nodeps --nosignature /test/first.rpm
grep -q 'interval: 5s' /etc/ig-otel-profiles/config.yaml || die "the upgrade has changed the configuration"
wait_for "another process of the service" sh -c "p=\$(systemctl show -P MainPID ig-otel-profiles); [ \$p != 0 ] && [ \$p != $pid ]"
run rpm -e ig-otel-profiles
! systemctl is-active --quiet ig-otel-profiles || die "the service still runs"
[ -e /etc/ig-otel-profiles/config.yaml.rpmsave ] || die "the removal has deleted the changed configuration"
left=$(find / -xdev -path '/test' -prune -o -path '*ig-otel-profile*' ! -type d ! -name '*.rpmsave' -print)
[ -z "$left" ] || die "files are left: $left"

systemctl stop burn
leave
say "all good"
