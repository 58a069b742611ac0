#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Prints the names, licences and copyright notices of the crates that are linked into the programs of the given
# packages. The text of the Apache licence is in /usr/share/common-licenses.
# usage: crates.sh PACKAGE...
set -eu
cd "$(dirname "$0")/../tools"
export LC_ALL=C.UTF-8
packages=$(printf -- '-p %s ' "$@")
directories=$(cargo metadata --locked --format-version 1 | grep -o '"manifest_path":"[^"]*"' | cut -d '"' -f 4)
cargo tree --locked -e normal --prefix none --no-dedupe -f '{p}|{l}' $packages |
	sed -n 's/^\([^ ]*\) v\([^ |(]*\)\( (proc-macro)\)\?|\(.*\)$/\1 \2 \4/p' | sort -u |
	while read -r name version licence; do
		printf '%s %s: %s\n\n' "$name" "$version" "$licence"
		manifest=$(printf '%s\n' "$directories" | grep -F "/$name-$version/Cargo.toml")
		find "${manifest%/*}" -maxdepth 1 -type f \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' \
			-o -iname 'unlicense*' \) ! -iname '*apache*' | sort | while read -r file; do
			tr -d '\r' <"$file"
			echo
		done
	done
