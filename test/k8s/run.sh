#!/bin/bash
# run.sh tests the daemon in a real Kubernetes on this machine. It installs packages, builds missing files, starts the cluster,
# runs the end-to-end test, and stops everything that it started. It needs root, Go, and for the first run the network.
# "run.sh build" only installs packages and builds missing files.
#
#	LAB        scratch folder                                   build/k8s
#	IG         ig of this project                               build/bin/ig
#	COLLECTOR  the Collector of test/collector                  build/bin/collector, built where missing
#	GADGET     the profile_cpu image, exported                  build/gadgets/profile_cpu.tar
#	ALLOC      the profile_alloc image, exported                build/gadgets/profile_alloc.tar
#	RUN        steps of the test beside deploy, as for go       all
#	           test -run
#	SOAK       how long to soak, such as 1h, in place of all    no
#	           other steps
#	KEEP=1     leaves the cluster running; "cluster.sh stop" ends it
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
. "$top/test/vm/stages.sh"
export LAB=${LAB:-$top/build/k8s} IG=${IG:-$top/build/bin/ig} COLLECTOR=${COLLECTOR:-$top/build/bin/collector}
export GADGET=${GADGET:-$top/build/gadgets/profile_cpu.tar}
export ALLOC=${ALLOC:-$top/build/gadgets/profile_alloc.tar}
mkdir -p "$LAB"
LAB=$(cd "$LAB" && pwd)
[ "$(id -u)" = 0 ] || {
	echo "run.sh must run as root: it mounts file systems and loads eBPF programs" >&2
	exit 1
}

if [ "${1:-}" = build ]; then
	exec "$here/build.sh"
fi

finish() {
	local status=$?
	trap - EXIT
	if [ $status != 0 ] && [ -d "$LAB/state/log" ]; then
		rm -rf "$LAB/log"
		cp -r "$LAB/state/log" "$LAB/log"
		echo "failed; the cluster's logs are in $LAB/log" >&2
	fi
	[ -n "${KEEP:-}" ] || "$here/cluster.sh" stop || status=1
	printf '\nseconds per stage\n%s' "$times"
	exit $status
}

collector() {
	[ -x "$COLLECTOR" ] || "$top/.ci/step" "building the Collector (a few minutes, once)" \
		env CGO_ENABLED=0 go -C "$top/test/collector" build -buildvcs=false -o "$COLLECTOR" .
}

# gadget puts the gadget into the cluster's registry, with and without a signature.
gadget() {
	export COSIGN_PASSWORD=
	rm -f "$LAB"/cosign.{key,pub}
	(cd "$LAB" && "$LAB/bin/cosign" generate-key-pair 2>/dev/null)
	local archive
	local archives="gadget alloc" signed="profile_cpu profile_alloc"
	if [ -e "$LAB/old-gadget.tar" ]; then archives+=" old-gadget" signed+=" profile_cpu_old"; fi
	for archive in $archives; do "$here/cluster.sh" in ig image import "$LAB/$archive.tar" >/dev/null; done
	for target in unsigned $signed; do
		local source=$target:${GADGET_TAG:-dev}
		case $target in
		profile_cpu | unsigned) source=${GADGET_NAME:-profile_cpu:${GADGET_TAG:-dev}} ;;
		profile_cpu_old) source=profile_cpu_old:dev ;;
		esac
		"$here/cluster.sh" in ig image tag "$source" 10.88.0.1:5000/$target:test >/dev/null 2>&1
		"$here/cluster.sh" in ig image push --insecure-registries 10.88.0.1:5000 10.88.0.1:5000/$target:test >/dev/null 2>&1
	done
	for target in $signed; do
		"$here/cluster.sh" in cosign sign --key "$LAB/cosign.key" --tlog-upload=false --allow-http-registry --yes \
			10.88.0.1:5000/$target:test 2>&1 | grep -v -i warning || true
	done
}

trap finish EXIT
trap 'exit 130' INT TERM
stage "Collector" collector
stage "packages, programs and images" "$here/build.sh"
"$here/cluster.sh" stop
stage "cluster" "$here/cluster.sh" start
stage "gadget, signed" gadget
export PATH=$PATH:/usr/sbin:/sbin
timeout=1h
[ -z "${SOAK:-}" ] || timeout=0
stage "end-to-end test" go -C "$top" test -count=1 -v -timeout $timeout ${RUN:+-run "TestKubernetes/(deploy|$RUN)"} ./test/k8s/e2e
