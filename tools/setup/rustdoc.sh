#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Documents crates of the kernel that clippy has read before, with the flags of that build. Warnings are errors.
#
#   rustdoc.sh OBJECTS OUTPUT CRATE...
#
# Each CRATE is the path of an object in the directory OBJECTS, without .o.
set -uo pipefail
objects=$1 output=$(realpath -m "$2") bad=0
shift 2
for crate in "$@"; do
	echo "$crate"
	saved=$(sed -n '1s/^savedcmd_[^ ]* := //p' "$objects/${crate%/*}/.${crate##*/}.o.cmd")
	flags=() variables=(RUSTC_BOOTSTRAP=1)
	eval "words=($saved)"
	for flag in "${words[@]}"; do
		case $flag in
		[A-Z]*=*) variables+=("$flag") ;;
		clippy-driver | */clippy-driver | -[AW]clippy::* | --emit=* | --remap-path-* | --out-dir | "${crate%/*}/") ;;
		*) flags+=("$flag") ;;
		esac
	done
	(cd "$objects" && env "${variables[@]}" rustdoc "${flags[@]}" --document-private-items -Dwarnings \
		-Arustdoc::private_intra_doc_links -o "$output") || bad=1
done
exit $bad
