#!/usr/bin/env bash
# run compares this project's operator with Inspektor Gadget's own. It writes the tables to build/bench.md and, as root,
# build/bench-program.md. A quiet machine gives steadier figures.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p build
go test -count=1 -timeout 30m ./test/bench -run TestTable -table "$PWD/build/bench.md" "$@"
echo "build/bench.md"
if [ "$(id -u)" -ne 0 ]; then
  echo "this is not root, so the CPU time of the whole program is not measured"
  exit 0
fi
make --no-print-directory build gadgets
E2E_BIN=$PWD/build/bin E2E_GADGETS=$PWD/build/gadgets go test -tags e2e -count=1 -timeout 30m ./test/bench/program -table "$PWD/build/bench-program.md"
echo "build/bench-program.md"
