# guest.sh runs in the virtual machine. It tests the package and its service from installation to removal.
. /test/helpers.sh

say "the host: $(. /etc/os-release; echo "$PRETTY_NAME"), kernel $(uname -r), $(systemctl --version | head -1)"
everything >out/before
programs >out/bpf.before
export DEBIAN_FRONTEND=noninteractive
receive
systemd-run --quiet --unit=burn /test/burn

# Here, the start and the end of the service take longer than the unit allows.
mkdir -p /run/systemd/system/ig-otel-profiles.service.d
printf '[Service]\nTimeoutStartSec=3600\nTimeoutStopSec=3600\n' >/run/systemd/system/ig-otel-profiles.service.d/slow.conf

say install
apt install -y /test/first.deb
run systemctl is-enabled ig-otel-profiles || true
[ "$(systemctl is-active ig-otel-profiles || true)" = inactive ] || die "the installation has started the service"
run ig-otel-profiles version || true
[ -s /usr/share/man/man8/ig-otel-profiles.8.gz ] || die "no man page"

say "start, without a backend"
run systemctl enable --now ig-otel-profiles
wait_for "the unit of a program in the history" kept
run ig-otel-profile history list
say "start, with a backend"
both
run timeout 300 systemctl restart ig-otel-profiles || die "the service does not stop"
wait_for "profiles with the function of a program" burns 0
run systemctl --no-pager -l status ig-otel-profiles

say "systemd-analyze security"
systemd-analyze security --no-pager ig-otel-profiles.service || true
systemd-analyze security --no-pager --offline=yes ig-otel-profiles.service | tail -1 || true

say "the killed service starts again"
pid=$(systemctl show -P MainPID ig-otel-profiles)
at=$(size)
kill -9 "$pid"
wait_for "another process of the service" sh -c "p=\$(systemctl show -P MainPID ig-otel-profiles); [ \$p != 0 ] && [ \$p != $pid ]"
wait_for "profiles of the new process" burns "$at"

say "upgrade, without the receiver"
sed -i 's/interval: 10s/interval: 5s/' /etc/ig-otel-profiles/config.yaml
kill $receiver
wait $receiver || true
[ ! -s out/findings ] || die "the receiver found: $(cat out/findings)"
pid=$(systemctl show -P MainPID ig-otel-profiles)
wait_for "a request in the queue's folder" stored
apt install -y /test/next.deb
upgraded=$(date +%s)
grep -q 'interval: 5s' /etc/ig-otel-profiles/config.yaml || die "the upgrade has changed the configuration"
[ "$(systemctl show -P MainPID ig-otel-profiles)" != "$pid" ] || die "the upgrade has not restarted the service"
at=$(size)
receive
wait_for "the old version's stored data" held "$at" "$upgraded"
wait_for "profiles of the new version" burns "$at"
journalctl --no-pager -o cat -u ig-otel-profiles | grep 'rows read' || die "no summary of a run that has ended"

say "downgrade"
apt install -y --allow-downgrades /test/first.deb
at=$(size)
[ "$(dpkg-query -W -f '${Version}' ig-otel-profiles)" = "$(dpkg-deb -f first.deb Version)" ] || die "it is not the older version"
wait_for "profiles of the older version" burns "$at"

say remove
apt remove -y ig-otel-profiles
! systemctl is-active --quiet ig-otel-profiles || die "the service still runs"
[ -e /etc/ig-otel-profiles/config.yaml ] || die "the removal has deleted the configuration, too"
for process in /proc/[0-9]*; do
	case $(readlink "$process/exe" || true) in */ig-otel-profiles/*) die "a process is left: $(tr '\0' ' ' <"$process/cmdline")" ;; esac
done
apt purge -y ig-otel-profiles
systemctl stop burn
everything >out/after
programs >out/bpf.after
echo "new files:"
diff out/before out/after | grep '^>' && die "files or folders are left"
echo "none"
diff out/bpf.before out/bpf.after || die "eBPF objects are left in /sys/fs/bpf"
kill $receiver
wait $receiver || true
echo "the receiver: $(cat out/receive.log)"
[ ! -s out/findings ] || die "the receiver found: $(cat out/findings)"
say "all good"
