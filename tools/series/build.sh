#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Builds the parts of the kernel that the patches of build/series affect: the Rust crates, virtio and RDMA.
#
#   build.sh m|y [NUMBER] [TARGET...]
#
# INFINIBAND is a module (m) or built in (y). NUMBER limits how many patches are applied. TARGET is built instead of the
# parts above; it can also be a variable for make. CLIPPY=1 has objects of its own, because it compiles everything with
# another compiler.
#
# The sources are hard links to the pristine ones; files that the patches change are separate copies. Sources and objects
# are kept outside the tree, so that the next run, in any tree, compiles only what differs. build/series/objects-* are
# links to the objects.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH
. tools/series/lib.sh
infiniband=$1 number=${2:-all}
shift $(($# < 2 ? $# : 2))
targets=("$@")
[ $# -gt 0 ] || targets=(prepare drivers/virtio/ drivers/infiniband/)
series=$PWD/build/series
builds=$CACHE/series
key=$({ echo "$KERNEL"; /usr/bin/rustc --version; cat "$BUILT/make" "$CONFIG"; } | sha256sum | cut -c 1-16)
tree=$builds/$key/tree
name=objects-$infiniband
case " ${targets[*]} " in *" CLIPPY=1 "*) name=objects-clippy ;; esac
objects=$builds/$key/$name

# One build at a time. Remove the builds of other kernels.
[ -d "$builds/$key" ] || (. tools/setup/lib.sh; need_space 4000 "the build of the series")
mkdir -p "$builds/$key"
exec 9>"$builds/lock"
flock -n 9 || { echo "waiting for the build of the series in another tree ..."; flock 9; }
find "$builds" -mindepth 1 -maxdepth 1 -type d ! -name "$key" -exec rm -rf {} +

# apply: makes the tree pristine, then applies the first $number patches.
apply() {
	local patch count=0
	if [ ! -d "$tree" ]; then
		rm -rf "$tree".*
		cp -al "$KERNEL" "$tree.new" 2>/dev/null || { rm -rf "$tree.new"; cp -a "$KERNEL" "$tree.new"; }
		mv "$tree.new" "$tree"
	fi
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
	# $tree.changed lists all files that may differ from the pristine ones.
	(cd "$series/changed" && find . -type f) | sort >"$series/files"
	touch "$tree.changed"
	comm -23 "$tree.changed" "$series/files" | while read -r path; do
		rm -f "$tree/$path"
		[ ! -f "$KERNEL/$path" ] || cp "$KERNEL/$path" "$tree/$path"
	done
	cp "$series/files" "$tree.changed"
	# Unchanged files keep their times, so that make does not compile them again.
	rsync -rc --out-format='changed: %n' "$series/changed/" "$tree/"
}

run() { "$BUILT/make" -C "$tree" O="$objects" "$@"; }

configure() {
	mkdir -p "$objects"
	ln -sfn "$objects" "$series/$name"
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
