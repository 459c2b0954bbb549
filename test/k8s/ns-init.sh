#!/bin/sh
# ns-init.sh is the first process in the cluster's new mount and network namespaces. It prepares them, and keeps them while it
# runs. Its mounts and changes are not visible outside. STATE is the folder of the running cluster.
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns
# The daemon's hook modes write into /etc and /opt of their host, and assume that CRI-O's folder exists.
for dir in /var/lib /etc /opt /usr/share; do
	name=$(echo $dir | tr -d /)
	mkdir -p "/run/overlay/upper/$name" "/run/overlay/scratch/$name"
	mount -t overlay overlay -o "lowerdir=$dir,upperdir=/run/overlay/upper/$name,workdir=/run/overlay/scratch/$name" $dir
done
mkdir -p /var/lib/kubelet /var/lib/cni /usr/share/containers/oci/hooks.d
mount -t tmpfs tmpfs /var/log
umount /sys/fs/bpf 2>/dev/null || true
mount -t bpf bpf /sys/fs/bpf
mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug
mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
# The kubelet would change these settings of the whole machine. Instead, it gets files with its values.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
	kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
	key=${setting%%=*}
	file=$STATE/sysctl/$(echo "$key" | tr / _)
	echo "${setting#*=}" >"$file"
	mount --bind "$file" "/proc/sys/$key"
done
# If the namespaces of process 1 cannot be read, this process replaces it.
readlink /proc/1/ns/pid >/dev/null 2>&1 && stat -L /proc/1/ns/pid >/dev/null 2>&1 || mount --bind /proc/$$ /proc/1
mount --make-rshared /
ip link set lo up
# Without an address of its own, the bridge has the lowest address of its ports. This address would change with the pods, and
# pods would send to the old address.
ip link add cni0 address 02:00:0a:58:00:01 type bridge
ip addr add 10.88.0.1/24 dev cni0
ip addr add 10.96.0.1/32 dev lo
ip link set cni0 up
ip route add 10.96.0.0/24 dev cni0
echo 1 >/proc/sys/net/ipv4/ip_forward
[ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
touch "$STATE/ready"
exec sleep infinity
