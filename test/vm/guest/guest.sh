# guest.sh runs in the virtual machine as root. The test outside gets /out and the exit status. /out/containers lists its
# containers, one a line:
#
#	KIND NAME ID IMAGE NAMESPACE POD
#
# A dash is an empty field. Kinds that start with "not" must not be seen.
set -u
. /env
say() { echo "[$(cut -d' ' -f1 /proc/uptime) s of the guest] $*" | tee -a /out/times; }
fail() {
	say "FAIL: $*"
	exit 1
}
socket=/run/containerd/containerd.sock

# By default, ctr tries to connect for ten seconds, which is too short beside containers that burn CPU.
ctr() { command ctr --connect-timeout 2m "$@"; }

# plain KIND NAMESPACE NAME [ARGUMENTS...] starts a container with ctr.
plain() {
	kind=$1 namespace=$2 name=$3
	shift 3
	ctr -n "$namespace" run -d test.local/burn:1 "$name" /burn "$@" || fail "ctr run $name"
	echo "$kind $name $name test.local/burn:1 - -" >>/out/containers
}

# pod KIND NAMESPACE POD NAME [ARGUMENTS...] starts a pod with one container through CRI.
pod() {
	kind=$1 namespace=$2 pod=$3 name=$4
	shift 4
	id=$(crirun $socket "$namespace" "$pod" "$name" test.local/burn:1 /burn "$@" 2>>/out/crirun.log) || fail "crirun $pod"
	echo "$kind $name $id test.local/burn:1 $namespace $pod" >>/out/containers
}

# ended CONTAINERS waits until the containers of the kind "ended" in this list have ended.
ended() {
	for id in $(awk '$1 == "ended" { print $3 }' "$1"); do
		i=0
		while ctr -n k8s.io task ls | grep -q "^$id .*RUNNING"; do
			i=$((i + 1))
			[ $i -lt 120 ] || fail "container $id has not ended"
			sleep 0.5
		done
	done
}

# ahead COMMAND... gives a command priority. Beside other programs, the emulated kernel would take minutes to check a gadget.
printf '#!/bin/sh\nrenice -n -19 -p $$ >/dev/null\nexec "$@"\n' >/usr/bin/ahead
chmod +x /usr/bin/ahead

say "kernel $(uname -r)"
mkdir -p /etc/containerd
cat >/etc/containerd/config.toml <<EOC
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "test.local/pause:1"
EOC
containerd >/out/containerd.log 2>&1 &
i=0
until ctr version >/dev/null 2>&1; do
	i=$((i + 1))
	[ $i -lt 120 ] || fail "containerd did not start"
	sleep 1
done
for namespace in k8s.io default; do
	for image in burn pause; do
		ctr -n $namespace images import /$image.tar >/dev/null 2>/out/import.log || fail "importing $image"
	done
done
say "containerd is up, with its images"
ig image import /gadget.tar >>/out/gadget 2>&1 || fail "importing the image gadget.tar"
if [ -n "$RUN" ]; then
	. "/$RUN.sh"
	exit 0
fi
receive -dir /out -listen 127.0.0.1:4317 >/out/receive.log 2>&1 &
receiver=$!

plain before k8s.io early
pod before shop cart-7d4b burner
plain "not-looked-at" default elsewhere
say "three containers run"
free -m | sed -n 2p

ahead ig run "profile_cpu:$GADGET_TAG" --verify-image=false -o json \
	--otel-profiles-exporter=otlp --otel-profiles-interval=2s >/out/ig.json 2>/out/ig.err &
ig=$!
i=0
until [ -s /out/ig.json ]; do
	i=$((i + 1))
	[ $i -lt 3000 ] && kill -0 $ig 2>/dev/null || fail "ig gave no row"
	sleep 0.1
done
say "first rows of ig"
# ig finds these containers by fanotify on runc.
plain ended k8s.io brief 1
pod ended shop job-1 briefpod 1
plain during k8s.io late
pod during shop pay-9c1e latepod
say "four more containers run"
ended /out/containers
sleep "$SECONDS_OF_RUN"
kill -INT $ig
wait $ig || fail "ig ended with $?"
say "ig has ended"
kill $receiver
wait $receiver || fail "the receiver ended with $?"

# This runs the command profile for one container.
ahead profile --container late --seconds "$SECONDS_OF_RUN" --gadget cpu --ig /usr/bin/ig --gadgets /gadgets -o /out/profile \
	>/out/profile.txt 2>&1 || fail "profile --container late ended with $?: $(tail -3 /out/profile.txt)"
say "profile --container has ended"
. /memory.sh
exit 0
