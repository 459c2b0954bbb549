#!/bin/bash
# build.sh BUILD BIN TAG VERSION ARCH makes a deb and an rpm in BUILD/package. They contain the programs in BIN and the gadgets
# in BUILD/gadgets. Run it in the repository's top folder.
set -euo pipefail
build=$1 bin=$2 tag=$3 version=$4 arch=$5
here=cmd/ig/package out=$build/package
rm -rf "$out/parts" "$out"/*_"$arch".deb "$out"/*."$(sed 's/amd64/x86_64/; s/arm64/aarch64/' <<<"$arch")".rpm
mkdir -p "$out/parts/gadgets"
cp "$bin/ig" "$bin/gadgetctl" "$bin/unwinder" "$bin/profile" "$out/parts/"
cp "$build"/gadgets/*.tar "$out/parts/gadgets/"
for unit in ig-otel-profiles ig-otel-profiles-daemon; do
	sed "s/@TAG@/$tag/" "$here/$unit.service" "$here/sandbox" >"$out/parts/$unit.service"
done
sed "s/@TAG@/$tag/" "$here/ig-otel-profiles" >"$out/parts/ig-otel-profiles"
go run ./$here/notices "$(git describe --tags --exact-match 2>/dev/null || git rev-parse HEAD)" \
	"$bin/ig" "$bin/gadgetctl" "$bin/unwinder" "$bin/profile" >"$out/parts/copyright"
gzip -9 -n <"$here/ig-otel-profiles.8" >"$out/parts/ig-otel-profiles.8.gz"
for format in deb rpm; do
	PACKAGE_VERSION=$version ARCH=$arch "$build/bin/nfpm" package --config "$here/nfpm.yaml" --packager $format --target "$out/" >/dev/null
done
rm -rf "$out/parts"
ls -1 "$out"
