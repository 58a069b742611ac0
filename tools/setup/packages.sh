#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Host packages and the Rust toolchain. Sourced by setup.sh.

# What the kernel build, the guest image and the lab need on both releases.
HOST_PACKAGES=(
	make gcc libc6-dev bc bison flex libelf-dev libssl-dev python3 python3-docutils xz-utils kmod pkg-config rsync
	mmdebstrap debian-archive-keyring ca-certificates binutils libibverbs-dev fonts-dejavu-core tshark iproute2
)
# The Rust toolchain: kernel 7.3 needs 1.85 or newer with matching rust-src.
RUST_PACKAGES_12=(rustc-web rust-web-src cargo-web rust-web-clippy rustfmt-web clang-19 libclang-19-dev)
RUST_PACKAGES_13=(rustc rust-src cargo rust-clippy rustfmt)
BINDGEN_PACKAGES_13=(bindgen libclang-19-dev clang-19)
BINDGEN_VERSION=0.72.1

# missing PACKAGE...: those that are not installed.
missing() {
	local package
	for package in "$@"; do
		dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || printf '%s\n' "$package"
	done
}

apt_install() { as_root env DEBIAN_FRONTEND=noninteractive ${APT_CONFIG:+APT_CONFIG="$APT_CONFIG"} apt-get -y --no-install-recommends install "$@"; }

# apt_lines ARGS...: how many lines installing will log, about: apt says how many packages come along.
apt_lines() { echo $(($(apt-get -s --no-install-recommends install "$@" 2>/dev/null | grep -c '^Inst') * 4 + 20)); }

apt_refresh() { as_root apt-get -o APT::Update::Error-Mode=any update; }

# install_missing WHAT PACKAGE...: from the machine's own sources.
install_missing() {
	local what=$1 list
	shift
	mapfile -t list < <(missing "$@")
	[ ${#list[@]} -gt 0 ] || return 0
	say "to install ($what): ${list[*]}"
	step "package indexes" "$LOGS/apt-update.log" 8 apt_refresh
	step "installing ${#list[@]} packages ($what)" "$LOGS/packages.log" "$(apt_lines "${list[@]}")" apt_install "${list[@]}"
}

rustc_is_new_enough() {
	local version
	version=$(/usr/bin/rustc --version 2>/dev/null | awk '{ print $2 }')
	[ -n "$version" ] && [ "$(printf '%s\n1.95.0\n' "$version" | sort -V | head -n 1)" = 1.95.0 ]
}

setup_packages() {
	local release list
	[ -z "${VRNIC_NO_PACKAGES:-}" ] || return 0
	release=$(host_release)
	install_missing "build tools" "${HOST_PACKAGES[@]}"
	if [ "$release" = 12 ]; then
		install_missing "Rust from Debian 12 security" "${RUST_PACKAGES_12[@]}"
		return
	fi
	install_missing "bindgen and libclang" "${BINDGEN_PACKAGES_13[@]}"
	# Debian 13 itself has 1.85: the newer toolchain comes from backports through a private apt state, which leaves
	# the machine's sources as they are.
	mapfile -t list < <(missing "${RUST_PACKAGES_13[@]}")
	if [ ${#list[@]} -gt 0 ] || ! rustc_is_new_enough; then
		(
			apt_state backports /var/lib/dpkg/status trixie trixie-updates trixie-backports
			step "Rust from Debian 13 backports" "$LOGS/rust.log" \
				"$(apt_lines -t trixie-backports "${RUST_PACKAGES_13[@]}")" apt_install -t trixie-backports "${RUST_PACKAGES_13[@]}"
		)
	fi
}

bindgen_install() {
	/usr/bin/cargo install bindgen-cli --version "$BINDGEN_VERSION" --locked --root "$1" --target-dir "$1.build" &&
		rm -rf "$1.build"
}

setup_toolchain() {
	local release dir
	release=$(host_release)
	LIBCLANG_DIR=$(dirname "$(ls -d /usr/lib/llvm-*/lib/libclang.so* 2>/dev/null | sort -V | tail -n 1)") || true
	[ -n "$LIBCLANG_DIR" ] || die "libclang is missing" "apt-get install libclang-19-dev"
	rustc_is_new_enough || die "/usr/bin/rustc is missing or older than 1.95" "run 'tools/setup/setup.sh packages'"
	if [ "$release" = 13 ]; then
		BINDGEN_PATH=/usr/bin/bindgen
		return
	fi
	dir=$CACHE/bindgen/$(key_of "$BINDGEN_VERSION" "$(/usr/bin/rustc --version)")
	BINDGEN_PATH=$dir/bin/bindgen
	ready "$dir" && return
	mkdir -p "$CACHE/bindgen"
	step "bindgen $BINDGEN_VERSION" "$LOGS/bindgen.log" 75 bindgen_install "$dir"
	finish "$dir"
}
