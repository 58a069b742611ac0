#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A QEMU with vfio-user-pci (10.1 or newer), to which build/setup/qemu becomes a link. In this order: the user's QEMU=,
# an installed one that is new enough, or the packages of Debian 13 backports. These are unpacked into the cache and run
# with their own loader, so nothing is installed and no root is needed. Sourced by setup.sh.

QEMU_SUITES=(trixie trixie-backports)

# Reads the whole list: if the pipe closed at the first match, QEMU would fail and so would the pipeline.
qemu_has_vfio_user() { [[ "$("$1" -device help 2>/dev/null)" == *'"vfio-user-pci"'* ]]; }

qemu_download() {
	local dir=$1 tmp=$1.tmp deb
	rm -rf "$tmp" "$dir"
	mkdir -p "$tmp/root"
	apt-get -y --no-install-recommends --download-only -o Dir::Cache::archives="$CACHE/apt/guest-only/qemu" \
		-t trixie-backports install qemu-system-x86 ipxe-qemu
	for deb in "$CACHE"/apt/guest-only/qemu/*.deb; do
		echo "unpacking $(basename "$deb")"
		dpkg-deb -x "$deb" "$tmp/root"
	done
	# Contains the final path: the directory is renamed below.
	cat >"$tmp/qemu-system-x86_64" <<-EOF
		#!/bin/sh
		# Runs the unpacked QEMU through its own loader and libraries.
		r='$dir/root'
		lib="\$r/usr/lib/x86_64-linux-gnu"
		export QEMU_MODULE_DIR="\$lib/qemu"
		exec "\$lib/ld-linux-x86-64.so.2" --argv0 qemu-system-x86_64 --library-path "\$lib" "\$r/usr/bin/qemu-system-x86_64" \\
			-L "\$r/usr/share/qemu" -L "\$r/usr/share/seabios" -L "\$r/usr/lib/ipxe/qemu" "\$@"
	EOF
	chmod +x "$tmp/qemu-system-x86_64"
	mv "$tmp" "$dir"
	rm -rf "$CACHE/apt/guest-only/qemu"
}

qemu_find() {
	local installed
	if [ -n "${QEMU:-}" ]; then
		QEMU_PATH=$(command -v "$QEMU") || die "QEMU=$QEMU is not a program" "give the path of a qemu-system-x86_64 of version 10.1 or newer"
		qemu_has_vfio_user "$QEMU_PATH" || die "QEMU=$QEMU has no vfio-user-pci device" "use QEMU 10.1 or newer, or leave QEMU unset"
		return
	fi
	if installed=$(command -v qemu-system-x86_64) && qemu_has_vfio_user "$installed"; then
		QEMU_PATH=$installed
		return
	fi
	qemu_unpacked
}

# qemu_unpacked: sets QEMU_PATH to the QEMU of the packages, which it unpacks if necessary.
qemu_unpacked() {
	local key dir
	key=$(key_of "$SETUP_DIR/qemu.sh" "${QEMU_SUITES[@]}" "$CACHE")
	dir=$CACHE/qemu/$key
	QEMU_PATH=$dir/qemu-system-x86_64
	ready "$dir" && return
	mkdir -p "$CACHE/qemu" "$CACHE/apt/guest-only/qemu/partial"
	(
		apt_state guest-only empty "${QEMU_SUITES[@]}"
		step "QEMU from Debian 13 backports" "$LOGS/qemu.log" 230 qemu_download "$dir"
	)
	qemu_has_vfio_user "$QEMU_PATH" || die "the unpacked QEMU does not run or has no vfio-user-pci" "see $LOGS/qemu.log; a QEMU of your own can be given as QEMU="
	finish "$dir"
}

setup_qemu() {
	qemu_find
	ln -sfn "$QEMU_PATH" "$TREE/build/setup/qemu"
}
