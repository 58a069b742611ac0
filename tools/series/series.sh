#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `make series`: exports the kernel side of this tree to build/series, as patches for the tree of a kernel.
#
#   series.sh [--signoff]
#
# Each file of commits/ becomes one patch. It contains the commit message, then lines that name what to take from this
# tree, then a diff of the kernel's own files. The lines are of two kinds:
#
#   file HERE THERE     a file or a directory of files, in the form that it has in the kernel tree (convert.pl)
#   merge HERE THERE    a file of helpers, added to one that the kernel has
#
# The parts of the RDMA abstractions name one another. So that each patch compiles what it adds, a file has in each patch
# only what can be compiled with the files that are there by then (prune.pl), and later patches add the rest to it.
#
# The patches come from a repository that contains only the files that they change. The author is the user who runs
# this, as named by git config.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH
. tools/series/lib.sh
here=$PWD
commits=$here/tools/series/commits
repository=build/series/repository
signoff=${1:-}
# Where the RDMA abstractions go, and what of them was added so far, complete.
abstractions=drivers/infiniband/rust crate=.git/crate

# file HERE THERE: converts and copies a file, or all sources of a directory.
file() {
	local from=$1 to=$2 modules source
	if [ -d "$here/$from" ]; then
		# Deepest files first, and lib.rs last at each depth: convert.pl removes declarations of modules that are not there
		# yet.
		(cd "$here/$from" && git ls-files) | awk -F/ '{ print -NF, $NF == "lib.rs", $0 }' | sort -s -n -k 1,1 -k 2,2 |
			while read -r _ _ source; do file "$from/$source" "$to/$source"; done
		return
	fi
	case $from in
	rust/rdma/example/* | rust/rdma/*.md) ;;
	rust/rdma/*)
		to=$crate/${to#"$abstractions"/}
		mkdir -p "$(dirname "$to")"
		perl "$here/tools/series/convert.pl" "$from" "" <"$here/$from" >"$to"
		rustfmt --edition 2021 --config-path "$KERNEL/.rustfmt.toml" --config skip_children=true "$to"
		return
		;;
	esac
	mkdir -p "$(dirname "$to")"
	# The modules of lib.rs are in its own directory, those of another file in a directory of its name.
	case $to in */lib.rs) modules=$(dirname "$to") ;; *) modules=${to%.rs} ;; esac
	perl "$here/tools/series/convert.pl" "$from" "$modules" <"$here/$from" >"$to"
	case $to in *.rs) rustfmt --edition 2021 --config-path "$KERNEL/.rustfmt.toml" --config skip_children=true "$to" ;; esac
}

# merge HERE THERE: appends helpers to a file of the kernel, together with the headers that they need.
merge() {
	local from=$here/$1 to=$2 include
	! grep -q KUNIT_TEST "$from" || { echo "series.sh: $1 has what depends on an option of ours" >&2; exit 1; }
	grep '^#include' "$from" | while read -r include; do
		grep -qxF "$include" "$to" || sed -i "0,/^#include/s||$include\n&|" "$to"
	done
	sed '1,/^#include/{/^#include/!d}; /^#include/d' "$from" >>"$to"
}

# base COMMIT...: copies the files that the commits change from the sources of the kernel, and commits them.
base() {
	local path
	sed -n 's|^--- a/||p; s|^merge [^ ]* ||p' "$@" | sort -u | while read -r path; do
		[ ! -f "$KERNEL/$path" ] || (cd "$KERNEL" && cp --parents "$path" "$here/$repository/")
	done
	git add -A
	git commit -q --allow-empty -m "Linux $(make -s --no-print-directory -C "$KERNEL" kernelversion)"
}

# commit FILE: makes the commit that FILE of commits/ describes.
commit() {
	local verb from to
	sed '1,/^---$/d; /^diff --git/,$d' "$1" | while read -r verb from to; do
		case $verb in
		file | merge) "$verb" "$from" "$to" ;;
		'') ;;
		*) echo "$1: unknown keyword $verb" >&2; exit 1 ;;
		esac
	done
	[ ! -d $crate ] || perl "$here/tools/series/prune.pl" $crate $abstractions |
		xargs -r rustfmt --edition 2021 --config-path "$KERNEL/.rustfmt.toml" --config skip_children=true
	sed -n '/^diff --git/,$p' "$1" | sed "s|@MAINTAINER@|$name <$address>|" >.git/change
	[ ! -s .git/change ] || git apply .git/change
	git add -A
	sed '/^---$/,$d' "$1" | git commit -q $signoff -F -
}

name=$(git config user.name) && address=$(git config user.email) || {
	[ -z "$signoff" ] || { echo "git config does not say who signs: set user.name and user.email" >&2; exit 1; }
	name=nobody address=nobody@localhost
}
# Dates come from the last commit, so that the same tree gives the same patches.
GIT_AUTHOR_DATE=$(git log -1 --format=%cI)
export GIT_AUTHOR_DATE GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE
rm -rf "$repository" build/series/*.patch
mkdir -p "$repository"
cd "$repository"
git init -q -b series
git config user.name "$name"
git config user.email "$address"
base "$commits"/*
git tag base
for file in "$commits"/*; do
	commit "$file"
done
# After the last patch, nothing is left out any more.
(cd "$crate" && find . -type f) | while read -r path; do
	cmp "$crate/$path" "$abstractions/$path" || { echo "the series leaves out a part of $abstractions/$path"; exit 1; }
done
git config branch.series.description "$(cat "$here/tools/series/cover")"
git format-patch -q --zero-commit --no-signature --cover-letter --cover-from-description=subject -o "$here/build/series" base
cd "$here"
# Patches of Linux that the series does not need.
rm -rf build/series/linux
mkdir build/series/linux
cp tools/series/linux/*.patch build/series/linux
echo "build/series: a cover letter and $(($(ls build/series/*.patch | wc -l) - 1)) patches"
