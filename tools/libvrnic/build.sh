#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Builds the provider for every supported private ABI of libibverbs and checks the results.
#
#   build.sh DIRECTORY      puts libvrnic-rdmav<private ABI>.so there, for each private ABI in layout/releases
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: build.sh DIRECTORY}"
out=$(cd "$1" && pwd)

# A provider exports nothing and depends only on libibverbs and libc.
check() {
	local object=$1 defined needed
	defined=$(nm -D --defined-only "$object")
	[ -z "$defined" ] || { echo "build.sh: $object exports symbols: $defined" >&2; exit 1; }
	needed=$(objdump -p "$object" | awk '$1 == "NEEDED" { print $2 }' | sort | tr '\n' ' ')
	[ "$needed" = "libc.so.6 libibverbs.so.1 " ] || { echo "build.sh: $object needs $needed" >&2; exit 1; }
}

cd "$here"
target=${CARGO_TARGET_DIR:-$here/../target}
for abi in $(awk '/^[0-9]/ { print $2 }' layout/releases | uniq); do
	cargo rustc --quiet --package libvrnic --lib --profile provider --features "pabi$abi" --crate-type cdylib
	object=$out/libvrnic-rdmav$abi.so
	install -m 644 "$target/provider/libvrnic.so" "$object.new"
	check "$object.new"
	mv "$object.new" "$object"
done
