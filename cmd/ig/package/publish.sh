#!/bin/bash
# publish.sh BUILD TAG REPOSITORY publishes the images of a release. It writes the public key, the signature of the checksums, and
# notes.md for the release's page into BUILD/publish. First check out the tag, and run "make test-release GADGET_TAG=TAG". Run this
# in the top folder. COSIGN_PRIVATE_KEY and COSIGN_PASSWORD are the signing key. With KEYLESS=1, the identity of the CI job signs the
# daemon's image. COSIGN_FLAGS are more flags of cosign. A REPOSITORY on localhost uses plain HTTP.
set -euo pipefail
build=$1 tag=$2 repository=$3
out=$build/publish cosign=${COSIGN:-cosign} ig=$build/bin/ig
die() { echo "publish.sh: $*" >&2; exit 1; }
[ "$(git describe --tags --exact-match --match 'v*' 2>/dev/null)" = "$tag" ] || die "the tag $tag is not checked out: run git checkout $tag"
[ -z "$(git status --porcelain)" ] || die "there are uncommitted changes: a release only has committed files"
[ -n "${COSIGN_PRIVATE_KEY:-}" ] || die "COSIGN_PRIVATE_KEY is empty: make a key with cosign generate-key-pair"
[ -s "$build/release/SHA256SUMS" ] || die "there is no $build/release/SHA256SUMS: run make test-release GADGET_TAG=$tag"
rm -rf "$out"
mkdir -p "$out"
plain=() push=() flags=()
read -ra flags <<<"${COSIGN_FLAGS:-}"
case $repository in localhost[:/]* | 127.0.0.1[:/]*)
	plain=(-insecure) push=(--insecure-registries "${repository%%/*}") flags+=(--allow-http-registry) ;;
esac
by_key=(--key env://COSIGN_PRIVATE_KEY)
step() { .ci/step "$@"; }
sign() { # DIGEST FLAGS...
	local digest=$1
	shift
	step "signing $digest" "$cosign" sign --yes "${flags[@]}" "$@" "$digest"
	echo "$digest" >>"$out/images.txt"
}

daemon=$repository/ig-otel-profiles
digest=$("$build/bin/imagebuild" -manifest cmd/gadgettracermanager/image.yaml -arch amd64,arm64 -version "$tag" -ref "$daemon:$tag" -push "${plain[@]}")
if [ -n "${KEYLESS:-}" ]; then sign "$digest" --recursive; else sign "$digest" --recursive "${by_key[@]}"; fi
for archive in "$build"/gadgets/*.tar; do
	name=$(basename "$archive" .tar)
	said=$("$ig" image tag "$name:$tag" "$repository/gadgets/$name:$tag" 2>&1) || die "$said"
	said=$("$ig" image push ${AUTHFILE:+--authfile "$AUTHFILE"} "${push[@]}" "$repository/gadgets/$name:$tag" 2>&1) || die "$said"
	digest=$(grep -o 'sha256:[0-9a-f]*' <<<"$said" | tail -1)
	# A gadget has one signature, by the key. Inspektor Gadget only verifies signatures by keys, and rejects an image with two signatures.
	sign "$repository/gadgets/$name@$digest" "${by_key[@]}"
done
"$cosign" public-key "${by_key[@]}" >"$out/cosign.pub"
tlog=()
[[ " ${flags[*]} " != *" --tlog-upload=false "* ]] || tlog=(--tlog-upload=false)
step "signing the checksums" "$cosign" sign-blob --yes "${tlog[@]}" "${by_key[@]}" --output-signature "$out/SHA256SUMS.sig" "$build/release/SHA256SUMS"

version() { go list -m -f '{{.Version}}' "$1"; }
previous=$(git describe --tags --abbrev=0 --match 'v*' "$tag^" 2>/dev/null || true)
{
	echo "## Changes since ${previous:-the beginning}"
	echo
	git log --no-merges --format='- %s' ${previous:+"$previous.."}"$tag"
	echo
	echo "## Supported versions"
	echo
	echo "| component | version |"
	echo "|---|---|"
	echo "| Inspektor Gadget (daemon, kubectl gadget, chart) | $(version github.com/inspektor-gadget/inspektor-gadget) |"
	echo "| OTLP profiles | v1development, proto $(version go.opentelemetry.io/proto/otlp/profiles/v1development); 1.9 and 1.8 with otlp_version |"
	echo "| Collector that the tests send to | $(cd test/collector && version go.opentelemetry.io/collector/receiver/otlpreceiver) |"
	echo "| Kubernetes that the tests run | $(cd test/k8s/modules/kubernetes && version k8s.io/kubernetes) |"
	echo "| architectures | linux/amd64, linux/arm64 |"
	echo
	echo "## Images"
	echo
	sed 's/^/    /' "$out/images.txt"
	echo
	echo "Contents of the daemon's image (amd64):"
	echo
	"$build/bin/imagebuild" -manifest cmd/gadgettracermanager/image.yaml -arch amd64 -version "$tag" -list | sed 's/^/    /'
} >"$out/notes.md"
ls -1 "$out"
