#!/bin/bash
# release.sh BUILD TAG VERSION LDFLAGS makes a release's files in BUILD/release. For each architecture, they are an archive of the
# static programs, a deb, an rpm, and an SBOM (CycloneDX) of each program. The gadgets' images and the checksums of all files are
# there, too. First run "make build gadgets build/bin/nfpm build/bin/cyclonedx-gomod". Run this in the top folder.
set -euo pipefail
build=$1 tag=$2 version=$3 ldflags=$4
top=$PWD out=$build/release
# File names have no "~", because GitHub's release page replaces it. Otherwise the checksums would name files that do not exist.
plain=${version//\~/-}
rm -rf "$out" "$build/package"
mkdir -p "$out"
export CGO_ENABLED=0
for arch in amd64 arm64; do
	name=ig-otel-profiles_${plain}_linux_$arch
	mkdir -p "$out/$name"
	GOARCH=$arch "$top/.ci/step" "building ig for $arch" go build -buildvcs=false -ldflags "-s -w $ldflags" -o "$out/$name/ig" ./cmd/ig
	GOARCH=$arch "$top/.ci/step" "building profile for $arch" go build -buildvcs=false -ldflags "-s -w" -o "$out/$name/profile" ./cmd/profile
	GOARCH=$arch "$top/.ci/step" "building gadgetctl for $arch" go build -buildvcs=false -ldflags "-s -w $ldflags" -o "$out/$name/gadgetctl" github.com/inspektor-gadget/inspektor-gadget/cmd/gadgetctl
	GOARCH=$arch "$top/.ci/step" "building unwinder for $arch" go -C cmd/unwinder build -buildvcs=false -ldflags "-s -w" -o "$top/$out/$name/unwinder" .
	cmd/ig/package/build.sh "$build" "$out/$name" "$tag" "$version" $arch >/dev/null
	# The SBOM is made from the program, so it lists the linked modules, and not all modules in go.mod.
	for program in gadgetctl ig profile unwinder; do
		"$build/bin/cyclonedx-gomod" bin -json -std -version "$plain" -output "$out/${name}_$program.cdx.json" "$out/$name/$program"
	done
	dpkg-deb --fsys-tarfile "$build"/package/*_"$arch".deb | tar -xO ./usr/share/doc/ig-otel-profiles/copyright >"$out/$name/copyright"
	# These options make the archive depend on the programs only.
	tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - "$name" | gzip -9 -n >"$out/$name.tar.gz"
	rm -rf "${out:?}/$name"
done
for package in "$build"/package/*.deb "$build"/package/*.rpm; do
	to=$(basename "$package")
	mv "$package" "$out/${to//\~/-}"
done
cp "$build"/gadgets/*.tar "$out/"
(cd "$out" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
