# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The RDMA programs and libraries of rdma-core 65 (Debian unstable), for the guests of Debian 13: the provider is built
# for both releases and both are run. Unpacked, not installed; each program runs through its own loader and libraries.
# USERLAND_DIR holds bin/, which the lab adds to the guests' share, and lib/. Sourced by setup.sh.

USERLAND_SUITE=sid
USERLAND_PACKAGES=(ibverbs-utils perftest rdmacm-utils)

userland_download() {
	local dir=$1 tmp=$1.tmp packages=$1.deb deb program
	rm -rf "$tmp" "$packages" "$dir"
	mkdir -p "$tmp"/{bin,lib,programs,root} "$packages/partial"
	apt-get -y --no-install-recommends --download-only -o Dir::Cache::archives="$packages" \
		install "${USERLAND_PACKAGES[@]}"
	for deb in "$packages"/*.deb; do
		echo "unpacking $(basename "$deb")"
		dpkg-deb -x "$deb" "$tmp/root"
	done
	# Without links: the lab copies plain files.
	find "$tmp/root/usr/lib/x86_64-linux-gnu" -maxdepth 1 -name '*.so*' -exec cp -L {} "$tmp/lib/" ';'
	for program in "$tmp"/root/usr/bin/{ib_,ibv_,rping,ucmatose}*; do
		cp -L "$program" "$tmp/programs/"
		program=$(basename "$program")
		cat >"$tmp/bin/$program-65" <<-EOF
			#!/bin/sh
			# $program of rdma-core 65, by its own loader and libraries.
			d=/vrnic/userland
			exec \$d/lib/ld-linux-x86-64.so.2 --argv0 $program --library-path \$d/lib \$d/programs/$program "\$@"
		EOF
		chmod +x "$tmp/bin/$program-65"
	done
	[ -f "$tmp/lib/libibverbs.so.1.18.65.0" ] || { echo "$USERLAND_SUITE has no rdma-core 65.0 any more"; exit 1; }
	rm -rf "$tmp/root" "$packages"
	mv "$tmp" "$dir"
}

setup_userland() {
	local key
	key=$(key_of "$SETUP_DIR/userland.sh")
	USERLAND_DIR=$CACHE/userland/$key
	ready "$USERLAND_DIR" && return
	mkdir -p "$CACHE/userland"
	# Unstable moves on: without it only one test has nothing to run.
	if (
		apt_state userland empty "$USERLAND_SUITE"
		step "rdma-core 65 for the guests" "$LOGS/userland.log" 120 userland_download "$USERLAND_DIR"
	); then
		finish "$USERLAND_DIR"
	else
		say "going on without rdma-core 65: its test will be skipped"
		USERLAND_DIR=
	fi
}
