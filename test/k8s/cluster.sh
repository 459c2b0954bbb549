#!/bin/bash
# cluster.sh start|stop|in COMMAND... runs a real one-node Kubernetes in its own mount and network namespaces, from build.sh's
# results in $LAB. It needs root and no network.
#
# The cluster uses the machine's PID namespace, because eBPF reports the machine's process IDs, and these must match /proc.
# $LAB/state has all data of the running cluster. Its containers have their own control group, so clusters of two folders do
# not disturb each other.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
LAB=$(cd "${LAB:?a folder that build.sh has filled}" && pwd)
state=$LAB/state
bin=$LAB/bin
cgroup=otel-profiles-test/$(echo "$state" | cksum | cut -d ' ' -f 1)
export STATE=$state PATH=$bin:$PATH:/usr/sbin:/sbin

die() {
	echo "cluster.sh: $*" >&2
	exit 1
}

inside() {
	local holder
	holder=$(cat "$state/holder.pid" 2>/dev/null) || die "the cluster is not running"
	nsenter -t "$holder" -m -n -- env KUBECONFIG="$state/kubeconfig" "$@"
}

# until_true SECONDS WHAT COMMAND... waits for the command to succeed.
until_true() {
	local end=$((SECONDS + $1)) what=$2
	shift 2
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || die "a wait timed out: $what; the logs are in $state/log"
		sleep 0.2
	done
}

# spawn NAME COMMAND... starts a part of the cluster; stop ends it by its process ID.
spawn() {
	local name=$1 holder
	shift
	holder=$(cat "$state/holder.pid")
	setsid nsenter -t "$holder" -m -n -- "$@" >"$state/log/$name.log" 2>&1 </dev/null &
	echo $! >"$state/$name.pid"
}

credentials() (
	cd "$state/pki"
	openssl req -x509 -newkey rsa:2048 -nodes -days 30 -keyout ca.key -out ca.crt -subj /CN=test-ca 2>/dev/null
	openssl req -newkey rsa:2048 -nodes -keyout apiserver.key -out apiserver.csr -subj /CN=kube-apiserver 2>/dev/null
	echo subjectAltName=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1,IP:10.88.0.1 >san
	openssl x509 -req -in apiserver.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile san -out apiserver.crt 2>/dev/null
	openssl genrsa -out sa.key 2048 2>/dev/null
	token=$(openssl rand -hex 16)
	echo "$token,admin,admin,system:masters" >tokens.csv
	cat >"$state/kubeconfig" <<-EOC
		apiVersion: v1
		kind: Config
		clusters: [{name: test, cluster: {server: "https://127.0.0.1:443", certificate-authority: $state/pki/ca.crt}}]
		users: [{name: admin, user: {token: $token}}]
		contexts: [{name: test, context: {cluster: test, user: admin}}]
		current-context: test
	EOC
)

start() {
	[ "$(id -u)" = 0 ] || die "must run as root"
	if [ -e "$state/holder.pid" ]; then
		kill -0 "$(cat "$state/holder.pid")" 2>/dev/null && die "already running; cluster.sh stop ends it"
		stop
	fi
	local folder
	mkdir -p "$state"/{sysctl,etcd,pki,log,kubelet,pods,volumeplugins,containerd,conf/cni,collector,release}
	for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
		ln -sf kubernetes "$bin/$name"
	done
	# Bit 24 is CAP_SYS_RESOURCE.
	local runc=runc bounding
	bounding=$(sed -n 's/^CapBnd:\t*//p' /proc/self/status)
	if [ $((0x$bounding >> 24 & 1)) != 1 ]; then
		runc=$here/runc-reduced.sh
	fi
	sed "s#@STATE@#$state#; s#@RUNC@#$(command -v "$runc")#" "$here/conf/containerd.toml" >"$state/conf/containerd.toml"
	sed "s#@STATE@#$state#; s#@CGROUP@#$cgroup#" "$here/conf/kubelet.yaml" >"$state/conf/kubelet.yaml"
	cp "$here/conf/cni.conflist" "$state/conf/cni/10-bridge.conflist"
	credentials
	for folder in $(cgroups); do mkdir -p "$folder"; done

	unshare -m -n setsid sh "$here/ns-init.sh" >"$state/log/ns-init.log" 2>&1 </dev/null &
	echo $! >"$state/holder.pid"
	until_true 20 "the namespaces" test -e "$state/ready"

	spawn etcd etcd --data-dir "$state/etcd" --listen-client-urls http://127.0.0.1:2379 \
		--advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
	spawn containerd containerd --config "$state/conf/containerd.toml"
	import &
	local importing=$!
	spawn kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port=443 \
		--advertise-address=10.88.0.1 --service-cluster-ip-range=10.96.0.0/24 \
		--tls-cert-file="$state/pki/apiserver.crt" --tls-private-key-file="$state/pki/apiserver.key" \
		--token-auth-file="$state/pki/tokens.csv" --authorization-mode=RBAC --allow-privileged=true \
		--service-account-issuer=https://kubernetes.default.svc \
		--service-account-key-file="$state/pki/sa.key" --service-account-signing-key-file="$state/pki/sa.key" \
		--kubelet-preferred-address-types=InternalIP \
		--feature-gates=MutatingAdmissionPolicy=true --runtime-config=admissionregistration.k8s.io/v1beta1=true
	until_true 120 "the API server" inside kubectl get --raw /readyz
	spawn kube-controller-manager kube-controller-manager --kubeconfig="$state/kubeconfig" --leader-elect=false \
		--flex-volume-plugin-dir="$state/volumeplugins" --root-ca-file="$state/pki/ca.crt" \
		--service-account-private-key-file="$state/pki/sa.key" --use-service-account-credentials=false
	spawn kube-scheduler kube-scheduler --kubeconfig="$state/kubeconfig" --leader-elect=false
	spawn kubelet kubelet --config="$state/conf/kubelet.yaml" --kubeconfig="$state/kubeconfig" --root-dir="$state/kubelet" \
		--hostname-override=node1 --node-ip=10.88.0.1
	spawn kube-proxy kube-proxy --kubeconfig="$state/kubeconfig" --hostname-override=node1 --cluster-cidr=10.88.0.0/24 \
		--proxy-mode=iptables --conntrack-max-per-core=0 --conntrack-min=0 \
		--conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
	spawn registry registry -listen 10.88.0.1:5000
	until_true 120 "the node" sh -c "'$here/cluster.sh' in kubectl get node node1 | grep -q ' Ready'"
	wait "$importing"
}

# import imports the images into containerd.
import() {
	until_true 60 containerd inside ctr version
	local archive
	for archive in "$LAB"/images/*.tar; do
		inside ctr -n k8s.io images import "$archive" >/dev/null
	done
}

# cgroups prints the folders of the cluster's control group. With cgroups version 1, there is one per controller.
cgroups() {
	local root=/sys/fs/cgroup controller
	if [ -e $root/cgroup.procs ]; then
		echo "$root/$cgroup"
		return
	fi
	for controller in $root/*/; do
		[ ! -e "${controller}cgroup.procs" ] || echo "$controller$cgroup"
	done
}

# existing prints the folders of cgroups that exist.
existing() {
	local folder
	for folder in $(cgroups); do
		[ ! -d "$folder" ] || echo "$folder"
	done
}

# alive PID... succeeds if at least one of the processes runs.
alive() {
	local pid
	for pid in "$@"; do
		kill -0 "$pid" 2>/dev/null && return 0
	done
	return 1
}

stop() {
	[ -e "$state/holder.pid" ] || return 0
	local holder pid folder parts=()
	holder=$(cat "$state/holder.pid")
	for part in kubelet registry kube-proxy kube-scheduler kube-controller-manager kube-apiserver etcd containerd; do
		[ ! -e "$state/$part.pid" ] || parts+=("$(cat "$state/$part.pid")")
	done
	kill -9 "${parts[@]}" 2>/dev/null || true
	# The remaining containers are in the pods' cgroups, and their shims in the mount namespace.
	if alive "$holder"; then
		local ns
		ns=$(readlink "/proc/$holder/ns/mnt")
		while folder=$(existing) && [ -n "$folder" ]; do
			for pid in $(for f in $folder; do find "$f" -name cgroup.procs -exec cat {} + 2>/dev/null; done); do
				kill -9 "$pid" 2>/dev/null || true
			done
			for f in $folder; do find "$f" -depth -type d -exec rmdir {} \; 2>/dev/null || true; done
			[ $((tries++)) -lt 25 ] || break
			sleep 0.2
		done
		for folder in $(cgroups); do rmdir "${folder%/*}" 2>/dev/null || true; done
		for pid in /proc/[0-9]*; do
			pid=${pid#/proc/}
			if [ "$pid" != "$holder" ] && [ "$(readlink "/proc/$pid/ns/mnt" 2>/dev/null)" = "$ns" ]; then
				kill -9 "$pid" 2>/dev/null || true
			fi
		done
		kill -9 "$holder" 2>/dev/null || true
	fi
	while alive "$holder"; do sleep 0.1; done
	rm -rf "$state"
}

tries=0
case ${1:-} in
start) start ;;
stop) stop ;;
in)
	shift
	holder=$(cat "$state/holder.pid" 2>/dev/null) || die "the cluster is not running"
	exec nsenter -t "$holder" -m -n -- env KUBECONFIG="$state/kubeconfig" "$@"
	;;
*) die "usage: cluster.sh start | stop | in COMMAND..." ;;
esac
