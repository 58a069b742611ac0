#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `make packages`: builds the Debian packages in a Debian 13 root directory and checks them with lintian.
#
#   build.sh DIRECTORY      puts the packages there; the sources are in DIRECTORY/vrnic-VERSION meanwhile
#
# Inside that root directory the sources always have the same path, since cargo derives names from it. The crates come
# from the same registry as for `make build`; nothing else is downloaded. No compiler of this machine is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tools/packages
root=$(readlink -f build/setup/packaging)
mkdir -p "${1:?usage: build.sh DIRECTORY}"
out=$(cd "$1" && pwd)
version=$(sed -n '1s/^vrnic (\(.*\)) .*/\1/p' $here/debian/changelog)
[ "$version" = "$(sed -n 's/^version = "\(.*\)"$/\1/p' tools/Cargo.toml)" ] ||
	{ echo "packages: $here/debian/changelog is of version $version, and tools/Cargo.toml of another" >&2; exit 1; }
source=vrnic-$version log=$out/build.log

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
# What is made in the root directory belongs to root, also if the build fails.
trap '[ "$(id -u)" = 0 ] || as_root chown -R "$(id -u):$(id -g)" "$out"' EXIT

# step WHAT COMMAND...: runs COMMAND with its output in the log.
step() {
	local what=$1 start=$SECONDS
	shift
	echo "$what ..."
	if ! "$@" >>"$log" 2>&1; then
		tail -n 30 "$log" >&2
		echo "packages: $what failed; the whole log is $log" >&2
		exit 1
	fi
	echo "$what: done in $((SECONDS - start))s"
}

# inside [--network] COMMAND: runs COMMAND in the Debian 13 root directory, which is mounted read-only, with DIRECTORY
# as /build. With --network, it also has the user's settings of proxies and cargo; without, there is no network. For the
# test that packages are reproducible, BUILD_ENVIRONMENT can give more variables, and BUILD_HOSTNAME another name of the
# machine.
inside() {
	local network=--net environment=() variable
	if [ "$1" = --network ]; then
		network=
		shift
		for variable in {http,https,all,no}_proxy {HTTP,HTTPS,ALL,NO}_PROXY \
			"${!CARGO_REGISTR@}" "${!CARGO_HTTP@}" "${!CARGO_NET@}"; do
			[ -z "${!variable:-}" ] || environment+=("$variable=${!variable}")
		done
	fi
	as_root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 "${environment[@]}" ${BUILD_ENVIRONMENT:-} \
		unshare --mount --uts --pid --fork --kill-child $network sh -euc '
			[ -z "$4" ] || hostname "$4"
			mount --make-rprivate /
			mount --bind "$1" "$1"
			mount --bind "$2" "$1/build"
			mount -t proc proc "$1/proc"
			mount -t tmpfs tmp "$1/tmp"
			mount -t tmpfs shm "$1/dev/shm"
			for file in /etc/hosts /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
				[ ! -f "$file" ] || mount --bind "$file" "$1$file"
			done
			mount -o remount,bind,ro "$1"
			exec chroot "$1" sh -euc "cd /build; $3"
		' sh "$root" "$out" "$1" "${BUILD_HOSTNAME:-}"
}

# Copies the sources without build results, and adds the Debian packaging and the user's settings of cargo.
copy_sources() {
	local settings=${CARGO_HOME:-$HOME/.cargo}/config.toml
	as_root rm -rf "${out:?}/$source" "$out/cargo" "$out/fetch" "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
	mkdir -p "$out/$source" "$out/cargo" "$out/fetch"
	rsync -rlt --exclude=/build --exclude=/.git --exclude=target --filter=':- .gitignore' ./ "$out/$source"
	cp -r $here/debian "$out/$source/"
	[ ! -f "$settings" ] || cp "$settings" "$out/fetch/"
}

: >"$log"
(. tools/setup/lib.sh; need_space 4000 "the build of packages" "$out")
step "sources" copy_sources
step "crates" inside --network "
	cd $source/tools
	CARGO_HOME=/build/fetch cargo vendor --locked --versioned-dirs /build/cargo/crates >/build/cargo/config.toml"
step "packages (5 to 10 minutes on 2 cores)" inside "
	chmod -R u=rwX,go=rX $source
	cd $source
	CARGO_HOME=/build/cargo dpkg-buildpackage --build=binary --no-sign"
step "lintian" inside "lintian --allow-root --fail-on error,warning *.changes"
as_root rm -rf "${out:?}/$source" "$out/cargo" "$out/fetch"
ls -1 "$out"/*.deb
