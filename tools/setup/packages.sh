#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Installs the packages that this machine needs, including the Rust toolchain. Sourced by setup.sh.

# What the modules, the guest image and the lab need on Debian 12 and 13.
HOST_PACKAGES=(
	make gcc libc6-dev bc bison flex libelf-dev libssl-dev python3 xz-utils zstd kmod pkg-config rsync
	mmdebstrap debian-archive-keyring ca-certificates binutils libibverbs-dev iproute2
)
# What tests, checks, fuzzers and charts need in addition.
TEST_PACKAGES=(python3-docutils fonts-dejavu-core tshark valgrind clang-19 chromium libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients)
# The Rust toolchain by its names in Debian 13. The lab's kernels need its sources, the checks the rest.
RUST_PACKAGES=(rustc cargo)
RUST_TEST_PACKAGES=(rust-src rust-clippy rustfmt)

# missing PACKAGE...: prints those that are not installed.
missing() {
	local package
	for package in "$@"; do
		dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || printf '%s\n' "$package"
	done
}

apt_install() { as_root env DEBIAN_FRONTEND=noninteractive ${APT_CONFIG:+APT_CONFIG="$APT_CONFIG"} apt-get -y --no-install-recommends install "$@"; }

# apt_lines ARGS...: prints about how many lines the installation will log, from the number of packages in apt's
# simulation.
apt_lines() { echo $(($(apt-get -s --no-install-recommends install "$@" 2>/dev/null | grep -c '^Inst') * 4 + 20)); }

# apt_space ARGS...: prints how many MiB the packages take that this would install.
apt_space() {
	local list
	list=$(apt-get -s --no-install-recommends install "$@" 2>/dev/null | awk '$1 == "Inst" { print $2 }' || :)
	{ apt-cache show --no-all-versions $list 2>/dev/null || :; } |
		awk '$1 == "Installed-Size:" { size += $2 } END { print int(size / 1024) + 1 }'
}

apt_refresh() { as_root apt-get -o APT::Update::Error-Mode=any update; }

# install_missing WHAT PACKAGE...: installs missing packages from the machine's own sources.
install_missing() {
	local what=$1 list
	shift
	mapfile -t list < <(missing "$@")
	[ ${#list[@]} -gt 0 ] || return 0
	say "to install ($what): ${list[*]}"
	step "package indexes" "$LOGS/apt-update.log" 8 apt_refresh
	need_space "$(apt_space "${list[@]}")" "what is installed ($what)" /usr
	step "installing ${#list[@]} packages ($what)" "$LOGS/packages.log" "$(apt_lines "${list[@]}")" apt_install "${list[@]}"
}

rustc_is_new_enough() {
	local version
	version=$(/usr/bin/rustc --version 2>/dev/null | awk '{ print $2 }')
	[ -n "$version" ] && [ "$(printf '%s\n1.95.0\n' "$version" | sort -V | head -n 1)" = 1.95.0 ]
}

# install_rust PACKAGE...: installs packages of a Rust toolchain that is new enough for the programs here.
install_rust() {
	local list
	if [ "$(host_release)" = 12 ]; then
		mapfile -t list < <(printf '%s\n' "$@" | sed 's/^rust-/rust-web-/; s/^\(rustc\|cargo\|rustfmt\)$/\1-web/')
		install_missing "Rust from Debian 12 security" "${list[@]}"
		return
	fi
	# Debian 13 itself has Rust 1.85. The newer toolchain comes from backports, through a private apt state, so that the
	# machine's sources are left alone.
	mapfile -t list < <(missing "$@")
	if [ ${#list[@]} -gt 0 ] || ! rustc_is_new_enough; then
		(
			apt_state backports /var/lib/dpkg/status trixie trixie-updates trixie-backports
			need_space "$(apt_space -t trixie-backports "$@")" "Rust" /usr
			step "Rust from Debian 13 backports" "$LOGS/rust.log" "$(apt_lines -t trixie-backports "$@")" apt_install -t trixie-backports "$@"
		)
	fi
}

setup_packages() {
	if [ -z "${VRNIC_NO_PACKAGES:-}" ]; then
		install_missing "build tools" "${HOST_PACKAGES[@]}"
		install_rust "${RUST_PACKAGES[@]}"
	fi
	rustc_is_new_enough || die "/usr/bin/rustc is missing or older than 1.95" "install a newer one, or unset VRNIC_NO_PACKAGES"
}

setup_tests() {
	[ -z "${VRNIC_NO_PACKAGES:-}" ] || return 0
	install_missing "tools of tests" "${TEST_PACKAGES[@]}"
	install_rust "${RUST_TEST_PACKAGES[@]}"
}
