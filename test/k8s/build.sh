#!/bin/bash
# build.sh fills $LAB for cluster.sh and the end-to-end test: Debian packages, Kubernetes, kubectl-gadget and cosign from their
# Go modules, and the images. It keeps existing results. make builds IG, COLLECTOR, GADGET and ALLOC.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
LAB=$(cd "${LAB:?a scratch folder}" && pwd)
bin=$LAB/bin
mkdir -p "$bin" "$LAB/images"
export CGO_ENABLED=0 PATH=$PATH:/usr/sbin:/sbin
step() { "$top/.ci/step" "$@"; }
# "make ahead" can still run when "make test-k8s" starts.
exec 9>"$LAB/lock"
flock 9

IG=$(realpath -e "${IG:?path of ig}")
COLLECTOR=$(realpath -e "${COLLECTOR:?path of the Collector}")
GADGET=$(realpath -e "${GADGET:?path of an exported gadget image}")
ALLOC=$(realpath -e "${ALLOC:?path of the exported image of profile_alloc}")
"$top/.ci/packages" containerd runc etcd-server containernetworking-plugins busybox-static iptables conntrack openssl \
	util-linux iproute2 ca-certificates gcc libc6-dev

version=$(cd "$here/modules/kubernetes" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
component=k8s.io/component-base/version
ldflags="-s -w -X $component.gitVersion=$version -X $component.gitMajor=1 -X $component.gitMinor=${minor%%.*}"
ldflags="$ldflags -X $component.gitTreeState=clean -X $component.buildDate=2026-01-01T00:00:00Z"
[ "$(cat "$bin/kubernetes.version" 2>/dev/null)" = "$version" ] || {
	step "building Kubernetes $version (about 8 minutes of one CPU, once)" \
		go -C "$here/modules/kubernetes" build -trimpath -tags notest,grpcnotrace -ldflags "$ldflags" -o "$bin/kubernetes" .
	echo "$version" >"$bin/kubernetes.version"
}
ig_module=github.com/inspektor-gadget/inspektor-gadget
ig_version=$(cd "$here/modules/kubectl-gadget" && go list -m -f '{{.Version}}' $ig_module)
[ "$(cat "$bin/kubectl-gadget.version" 2>/dev/null)" = "$ig_version" ] || {
	step "building kubectl-gadget $ig_version" go -C "$here/modules/kubectl-gadget" build -buildvcs=false \
		-ldflags "-s -w -X $ig_module/internal/version.version=$ig_version" -o "$bin/kubectl-gadget" $ig_module/cmd/kubectl-gadget
	echo "$ig_version" >"$bin/kubectl-gadget.version"
}
[ -x "$bin/cosign" ] || step "building cosign (a few minutes, once)" go -C "$here/modules/cosign" build -trimpath -buildvcs=false \
	-ldflags "-s -w" -o "$bin/cosign" github.com/sigstore/cosign/v2/cmd/cosign
[ -x "$bin/helm" ] || step "building Helm (a few minutes, once)" go -C "$here/modules/helm" build -trimpath -buildvcs=false \
	-ldflags "-s -w" -o "$bin/helm" helm.sh/helm/v3/cmd/helm
step "building the registry" go -C "$here/registry" build -buildvcs=false -o "$bin/registry" .
step "building imagebuild" go -C "$top/cmd/imagebuild" build -buildvcs=false -o "$bin/imagebuild" .

gcc -static -Os -s -o "$LAB/pause" "$here/pause.c"
# A function without its own frame hides its caller from the stack.
gcc -static -O1 -g -fno-inline -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -o "$LAB/burn" "$here/burn.c"
gcc -static -O0 -g -fno-omit-frame-pointer -o "$LAB/churn" "$here/churn.c"
cd "$top"
archive() { # NAME OPTION... builds a complete archive, or none
	step "building the image $1" "$bin/imagebuild" "${@:2}" -archive "$LAB/part" -ref "localhost/$1:test"
	mv "$LAB/part" "$LAB/images/$1.tar"
}
for program in pause burn churn; do
	archive $program -manifest "$here/images/$program.yaml" -file "$program=$LAB/$program"
done
image=$LAB/images/collector.tar
if [ ! -e "$image" ] || ! cmp -s "$COLLECTOR" "$LAB/collector" || [ -n "$(find cmd/imagebuild "$here/images" -newer "$image" -print -quit)" ]; then
	archive collector -manifest "$here/images/collector.yaml" -file "collector=$COLLECTOR"
	cp "$COLLECTOR" "$LAB/collector"
fi
# A deletion changes the time of a folder.
image=$LAB/images/inspektor-gadget.tar
if [ ! -e "$image" ] || [ -n "$(find cmd pkg operators internal go.mod go.sum -newer "$image" -print -quit)" ]; then
	touch "$LAB/began"
	archive inspektor-gadget -manifest cmd/gadgettracermanager/image.yaml
	touch -r "$LAB/began" "$image" # a file can change during the build
fi
# The steps upgrade and life need a daemon from before the format of stored requests changed, and a gadget of the same time.
if [[ ${RUN:-life} =~ life|upgrade ]] && ! { [ -e "$LAB/images/old.tar" ] && [ -e "$LAB/old-gadget.tar" ]; }; then
	changed=$(git -c safe.directory="$top" log --format=%H -S'storeVersion = 2' -- pkg/export | tail -1)
	[ -n "$changed" ] || {
		echo "build.sh: the commit that changed the format of stored requests is not in this clone: run git fetch --unshallow" >&2
		exit 1
	}
	rm -rf "$LAB/old"
	mkdir "$LAB/old"
	git -c safe.directory="$top" archive "$changed^" | tar -C "$LAB/old" -x
	(cd "$LAB/old" && step "building the daemon's image of before $changed (a few minutes, once)" \
		go run -buildvcs=false ./cmd/imagebuild -manifest cmd/gadgettracermanager/image.yaml -archive "$LAB/old.tar" -ref localhost/inspektor-gadget:old)
	"$top/.ci/gadgets" build "$IG" profile_cpu_old:dev "$LAB/old/gadgets/profile_cpu" "$LAB/old-gadget.tar"
	rm -rf "$LAB/old"
	mv "$LAB/old.tar" "$LAB/images/old.tar"
fi
cp "$IG" "$bin/ig"
cp "$GADGET" "$LAB/gadget.tar"
cp "$ALLOC" "$LAB/alloc.tar"
