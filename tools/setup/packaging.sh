#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The root directory in which packages are built: Debian 13 with debhelper, lintian and the Rust of its backports, so
# that the packages do not depend on what this machine runs. build/setup/packaging becomes a link to it. Sourced by
# setup.sh.

PACKAGING_PACKAGES=(
	debhelper dh-dkms libibverbs-dev lintian cargo rustc rsync binutils libc6-dev gcc man-db systemd ca-certificates
)

packaging_build() {
	local dir=$1 uri=$2 preferences=$1.preferences suite sources=()
	rm -rf "$dir" 2>/dev/null || as_root rm -rf "$dir"
	apt-config dump | grep -E '^Acquire::(http|https)::Proxy' >"$dir.apt.conf" || true
	printf '%s\n' 'Package: src:rustc src:cargo' 'Pin: release n=trixie-backports' 'Pin-Priority: 990' >"$preferences"
	for suite in trixie trixie-backports; do
		sources+=("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main")
	done
	as_root mmdebstrap --variant=buildd --architectures=amd64 \
		--include="$(IFS=,; echo "${PACKAGING_PACKAGES[*]}")" --aptopt="$dir.apt.conf" \
		--setup-hook="install -D -m 644 '$preferences' \"\$1/etc/apt/preferences.d/rust\"" \
		--customize-hook='mkdir "$1/build"; touch "$1/etc/resolv.conf" "$1/etc/hosts"' \
		trixie "$dir" "${sources[@]}"
	rm -f "$dir.apt.conf" "$preferences"
}

setup_packaging() {
	local root
	[ -n "${VRNIC_NO_PACKAGES:-}" ] ||
		install_missing "tools for packages" mmdebstrap debian-archive-keyring ca-certificates rsync
	root=$CACHE/packaging/$(key_of "$SETUP_DIR/packaging.sh")
	if [ ! -f "$root.complete" ]; then
		need_space 2500 "the Debian 13 that packages are built in"
		mkdir -p "$CACHE/packaging"
		step "Debian 13 to build packages in" "$LOGS/packaging.log" 16 packaging_build "$root" "$(mirror)"
		date -u +%FT%TZ >"$root.complete"
	fi
	ln -sfn "$root" "$TREE/build/setup/packaging"
}
