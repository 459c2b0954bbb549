#!/bin/bash
# Builds Parca's server into $1. Parca's Go module is published without the web pages that its package ui embeds, so it does not
# compile. A copy of it gets an empty page.
set -eu
out=$(realpath -m "$1")
cd "$(dirname "$0")"
module=github.com/parca-dev/parca
go mod download $module
source=$(go list -m -f '{{.Dir}}' $module)
work=$(dirname "$out")/../parca
mkdir -p "$work"
work=$(realpath "$work")
if ! [ -e "$work/complete" ]; then
	rm -rf "$work/source"
	mkdir -p "$work/source/ui/packages/app/web/build"
	cp -r --no-preserve=mode,ownership "$source"/{go.mod,go.sum,cmd,pkg,gen} "$work/source"
	cp --no-preserve=mode,ownership "$source"/ui/*.go "$work/source/ui"
	echo '<!doctype html><title>Parca</title>' >"$work/source/ui/packages/app/web/build/index.html"
	touch "$work/complete"
fi
cp go.mod "$work/go.mod"
cp go.sum "$work/go.sum"
go mod edit -replace "$module=$work/source" "$work/go.mod"
go build -modfile="$work/go.mod" -buildvcs=false -o "$out" $module/cmd/parca
