#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Fetches sources of rdma-core, against which the layouts are checked. Debian has those of two releases, as source
# packages; a git repository of rdma-core has those of the others in layout/releases, too:
#
#   sources.sh DIRECTORY [REPOSITORY]   creates DIRECTORY/56.1 and DIRECTORY/65.0, and what REPOSITORY has tags for
#
# Uses the mirror of this machine's apt configuration and leaves apt's own state alone.
set -euo pipefail

mkdir -p "${1:?usage: sources.sh DIRECTORY [REPOSITORY]}"
out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
if [ -n "${2:-}" ]; then
	for release in $(awk '/^[0-9]/ { print $1 }' "$here/releases"); do
		[ ! -d "$out/$release" ] && git -C "$2" rev-parse --quiet --verify "v$release^{commit}" >/dev/null || continue
		rm -rf "$out/$release.new"
		mkdir "$out/$release.new"
		git -C "$2" archive "v$release" | tar -C "$out/$release.new" -x
		mv "$out/$release.new" "$out/$release"
	done
fi
[ -d "$out/56.1/libibverbs" ] && [ -d "$out/65.0/libibverbs" ] && exit

state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
# apt drops its privileges for downloads and must still reach its directories.
chmod 755 "$state"
mkdir -p "$state"/{etc/apt.conf.d,etc/preferences.d,lists/partial,cache/archives/partial}
touch "$state/status"
uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | sort | uniq -c |
	sort -rn | awk 'NR == 1 { print $2 }')
for suite in trixie forky sid; do
	echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
done >"$state/etc/sources.list"
cat >"$state/apt.conf" <<EOF
Dir::Etc "$state/etc";
Dir::State "$state";
Dir::State::lists "$state/lists";
Dir::State::status "$state/status";
Dir::Cache "$state/cache";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
EOF
export APT_CONFIG=$state/apt.conf
apt-get -qq update

for release in 56.1 65.0; do
	version=$(apt-cache showsrc rdma-core | sed -n "s/^Version: \($release-.*\)/\1/p" | sort -u | tail -n 1)
	[ -n "$version" ] || { echo "sources.sh: the mirror has no rdma-core $release" >&2; exit 1; }
	# Only the release tarball is needed, and apt verifies it; a mirror may lack the packaging files.
	(cd "$state" && apt-get -qq --download-only source "rdma-core=$version" 2>"$state/log") ||
		ls "$state/rdma-core_$release".orig.tar.* >/dev/null || { cat "$state/log" >&2; exit 1; }
	rm -rf "$out/$release.new"
	mkdir -p "$out/$release.new"
	tar -C "$out/$release.new" --strip-components=1 -xf "$state/rdma-core_$release".orig.tar.*
	rm -rf "${out:?}/$release"
	mv "$out/$release.new" "$out/$release"
done
