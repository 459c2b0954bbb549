#!/bin/bash
# publish.sh makes a release from a tag in a clone of this folder's commit. It publishes to a registry on this machine with the
# commands of docs/develop/release.md, and verifies the result. It needs root. PUBLISH is its scratch folder.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
work=${PUBLISH:-$top/build/publish-test} tag=v0.0.1-rc.1 port=${PORT:-5055}
die() { echo "publish.sh: $*" >&2; exit 1; }
mkdir -p "$work/bin"
work=$(cd "$work" && pwd)
rm -rf "$work/clone" "$work/store" "$work/home"
export CGO_ENABLED=0 COSIGN_PASSWORD=test COSIGN_FLAGS=--tlog-upload=false PATH=$work/bin:$PATH
"$top/.ci/step" "building the registry" go -C "$top/test/k8s/registry" build -buildvcs=false -o "$work/bin/registry" .
[ -x "$work/bin/cosign" ] || "$top/.ci/step" "building cosign (a few minutes, once)" go -C "$top/test/k8s/modules/cosign" build -trimpath -buildvcs=false \
	-ldflags "-s -w" -o "$work/bin/cosign" github.com/sigstore/cosign/v2/cmd/cosign
"$work/bin/registry" -listen "127.0.0.1:$port" >"$work/registry.log" 2>&1 &
registry=$!
trap 'kill $registry; rm -rf "$work/clone" "$work/store"' EXIT

git -c advice.detachedHead=false clone -q --no-hardlinks "$top" "$work/clone"
# This machine's images of ig stay unchanged.
mkdir -p "$work/store" "$work/home" /var/lib/ig
export REPOSITORY=localhost:$port/profiles TAG=$tag STORE=$work/store
cd "$work/clone"
git tag "$tag"
awk '/^```sh tested/ { on = 1; next } /^```$/ { on = 0 } on' docs/develop/release.md >"$work/commands"
grep -q 'make publish' "$work/commands" || die "the page has no commands"
# Go's caches stay in their folders.
GOMODCACHE=$(go env GOMODCACHE) GOCACHE=$(go env GOCACHE)
export GOMODCACHE GOCACHE HOME=$work/home
unshare --mount bash -euo pipefail -c 'mount --bind "$STORE" /var/lib/ig; . "$0"' "$work/commands"

cd build
verify() { cosign verify --key publish/cosign.pub --insecure-ignore-tlog --allow-http-registry "$1" >/dev/null 2>&1 || die "the signature of $1 is not by the key"; }
images=$(cat publish/images.txt)
[ "$(wc -l <<<"$images")" = $(($(ls ../gadgets/*/gadget.yaml | wc -l) + 1)) ] || die "there must be one image for each gadget, and one for the daemon: $images"
for image in $images; do
	verify "$image"
	repo=${image#localhost:*/} repo=${repo%@*}
	index=$(curl -fsS -H 'Accept: application/vnd.oci.image.index.v1+json' "http://localhost:$port/v2/$repo/manifests/$tag")
	for arch in amd64 arm64; do grep -q "\"architecture\": *\"$arch\"" <<<"$index" || die "$repo:$tag has no image for $arch"; done
	grep -qF "    $image" publish/notes.md || die "the notes lack $image"
done
# Another key and other checksums must be refused.
cosign verify-blob --key publish/cosign.pub --insecure-ignore-tlog --signature publish/SHA256SUMS.sig release/SHA256SUMS
sed 's/^./x/' release/SHA256SUMS >"$work/sums"
! cosign verify-blob --key publish/cosign.pub --insecure-ignore-tlog --signature publish/SHA256SUMS.sig "$work/sums" 2>/dev/null || die "cosign accepts other checksums"
grep -qF -- "- $(git log -1 --format=%s)" publish/notes.md || die "the notes lack the newest change"
echo "released $tag: $(wc -l <<<"$images") images, $(ls release | wc -l) files; the notes have $(grep -c '^- ' publish/notes.md) changes"
