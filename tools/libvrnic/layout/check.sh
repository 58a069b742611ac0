#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Proves the layouts of src/ffi against the headers of each release of rdma-core that a provider is built for.
#
#   check.sh [--update] SOURCES
#
# SOURCES holds the unpacked sources, one directory per release: SOURCES/56.1, SOURCES/65.0. A C program that prints
# every size, offset and constant the Rust code relies on is compiled with those headers, and so are the prototypes.
# Its output must be what is committed as layout/<release>.txt (which `cargo test` compares with the Rust code);
# --update writes it instead.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
update=
if [ "${1:-}" = --update ]; then
	update=1
	shift
fi
sources=$(cd "${1:?usage: check.sh [--update] SOURCES}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# headers RELEASE PABI: the include directory that rdma-core's own build would make, as far as driver.h needs it.
headers() {
	local from=$sources/$1 to=$work/$1 header
	[ -f "$from/libibverbs/driver.h" ] || { echo "check.sh: $from is not the source of rdma-core $1" >&2; exit 1; }
	mkdir -p "$to/infiniband" "$to/kernel-abi"
	ln -s "$from"/libibverbs/*.h "$from"/kernel-headers/rdma/ib_user_ioctl_verbs.h "$to/infiniband/"
	ln -s "$from/kernel-headers/rdma" "$to/rdma"
	ln -s "$from/ccan" "$to/ccan"
	ln -s "$from/util" "$to/util"
	for header in ib_user_verbs ib_user_ioctl_verbs; do
		python3 "$from/buildlib/make_abi_structs.py" "$from/kernel-headers/rdma/$header.h" "$to/kernel-abi/$header.h"
	done
	printf '#define IBVERBS_PABI_VERSION %s\n' "$2" >"$to/config.h"
}

# program PABI: the C program that answers every question of src/ffi/check.rs.
program() {
	cat <<-'C'
		#include <stddef.h>
		#include <stdint.h>
		#include <stdio.h>
		#include <infiniband/driver.h>
		#include "prototypes.h"
		int main(void)
		{
	C
	(cd "$here/.." && VRNIC_PABI=$1 cargo test -q -p libvrnic --lib -- --ignored --nocapture print_questions) |
		sed -n 's/.*QUESTION \(.*\)$/\tprintf("%s %llu\\n", "\1", (unsigned long long)(\1));/p'
	printf '\treturn 0;\n}\n'
}

check() {
	local release=$1 pabi=$2 answers=$work/$1.txt
	headers "$release" "$pabi"
	program "$pabi" >"$work/$release.c"
	${CC:-cc} -std=gnu11 -Wall -Werror -Wno-unused -I"$work/$release" -I"$here" -o "$work/$release.bin" \
		"$work/$release.c"
	{
		echo "# Sizes, offsets, constants of rdma-core $release (private ABI $pabi, $(uname -m)), from layout/check.sh."
		"$work/$release.bin"
	} >"$answers"
	[ "$(wc -l <"$answers")" -gt 100 ] || { echo "check.sh: no questions to ask" >&2; exit 1; }
	if [ -n "$update" ]; then
		cp "$answers" "$here/$release.txt"
	else
		diff -u "$here/$release.txt" "$answers"
	fi
	echo "rdma-core $release (private ABI $pabi): $(($(wc -l <"$answers") - 1)) values and all prototypes agree"
}

check 56.1 34
check 65.0 65
