# shellcheck shell=bash
# qemu.sh here and run.sh in test/k8s source stages.sh.

times=
stage() { # NAME COMMAND...
	local name=$1 start=$SECONDS
	shift
	echo "== $name"
	"$@"
	times+=$(printf '%5d s  %s' $((SECONDS - start)) "$name")$'\n'
}
