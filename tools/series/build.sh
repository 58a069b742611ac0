#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Builds the kernel with the patches of build/series, as far as they are about it: the Rust crates, virtio and RDMA.
#
#   build.sh m|y [NUMBER] [TARGET...]    INFINIBAND is a module or built in; only the first patches; or something else
#
# The sources are hard links to the pristine ones, and what the patches change are files of their own. Objects are kept
# for the next time.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH
. tools/series/lib.sh
infiniband=$1 number=${2:-all}
shift $(($# < 2 ? $# : 2))
targets=("$@")
[ $# -gt 0 ] || targets=(prepare drivers/virtio/ drivers/infiniband/)
series=$PWD/build/series
tree=$series/tree
objects=$series/objects-$infiniband

# apply: puts the first patches into the tree.
apply() {
	local patch count=0
	[ -d "$tree" ] || cp -al "$KERNEL" "$tree" 2>/dev/null || { rm -rf "$tree"; cp -a "$KERNEL" "$tree"; }
	rm -rf "$series/changed"
	mkdir "$series/changed"
	sed -n 's|^--- a/||p' "$series"/0*.patch | sort -u | while read -r path; do
		[ ! -f "$KERNEL/$path" ] || (cd "$KERNEL" && cp --parents "$path" "$series/changed/")
	done
	for patch in "$series"/0*.patch; do
		case $patch in */0000-*) continue ;; esac
		[ "$count" != "$number" ] || break
		count=$((count + 1))
		(cd "$series/changed" && GIT_DIR=/nonexistent git apply --whitespace=error-all "$patch")
	done
	# What did not change keeps its time, so that make does not compile it again.
	rsync -rc --out-format='changed: %n' "$series/changed/" "$tree/"
}

run() { "$BUILT/make" -C "$tree" O="$objects" "$@"; }

configure() {
	mkdir -p "$objects"
	{
		cat "$CONFIG"
		sed "s/@INFINIBAND@/$infiniband/" tools/series/config
	} >"$objects/.config"
	run olddefconfig
	[ "$number" != all ] || sed "s/@INFINIBAND@/$infiniband/; /^CONFIG/!d" tools/series/config | while read -r option; do
		grep -qxF "$option" "$objects/.config" || { echo "not accepted by the kernel's configuration: $option"; exit 1; }
	done
}

apply
configure
run -j"$(nproc)" "${targets[@]}"
