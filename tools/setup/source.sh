# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The kernel source of Debian 13 backports, used for all kernels of the setup. Sourced by setup.sh.

KERNEL_SERIES=7.3
KERNEL_SUITES=(trixie trixie-backports)

source_unpack() {
	local dir=$1 tmp=$1.tmp
	rm -rf "$dir" "$tmp"
	mkdir -p "$dir"
	apt_fetch "$tmp" "linux-source-$KERNEL_SERIES"
	dpkg-deb -x "$tmp"/linux-source-*.deb "$tmp"
	tar -C "$dir" --strip-components=1 -xf "$tmp/usr/src/linux-source-$KERNEL_SERIES.tar.xz"
	rm -rf "$tmp"
}

# kernel_source: sets SOURCE_DIR to the sources of the newest version. Needs the state of apt_state.
kernel_source() {
	local version
	version=$(apt_version "linux-source-$KERNEL_SERIES")
	[ -n "$version" ] || die "the Debian mirror of this machine has no linux-source-$KERNEL_SERIES in trixie-backports" \
		"use a mirror that has it, or give a built kernel tree: KDIR="
	SOURCE_DIR=$CACHE/source/linux-$version
	(
		# Several kernels may be prepared at the same time.
		lock source
		ready "$SOURCE_DIR" && exit
		need_space 2500 "the source of the kernel"
		mkdir -p "$CACHE/source"
		step "kernel source $version" "$LOGS/kernel-source.log" 4 source_unpack "$SOURCE_DIR"
		finish "$SOURCE_DIR"
	)
}
