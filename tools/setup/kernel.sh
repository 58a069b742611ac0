#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The guests' kernel: Debian's linux-source-7.3, tinyconfig plus kernel.config. VRNIC_KERNEL=debug adds
# kernel-debug.config, which needs clang, and VRNIC_KERNEL=races kernel-races.config. A user's own configured and built
# tree is used as it is: KDIR=. KERNEL_TREE holds the object tree, KERNEL_CC the compiler that modules of it need. Sourced
# by setup.sh.

KERNEL_SERIES=7.3
KERNEL_SUITES=(trixie trixie-backports)

kernel_unpack() {
	local dir=$1
	rm -rf "$dir"
	mkdir -p "$dir/deb" "$dir/src" "$dir/obj"
	(cd "$dir/deb" && apt-get download "linux-source-$KERNEL_SERIES/trixie-backports")
	dpkg-deb -x "$dir"/deb/linux-source-*.deb "$dir/deb"
	tar -C "$dir/src" --strip-components=1 -xf "$dir/deb/usr/src/linux-source-$KERNEL_SERIES.tar.xz"
	rm -rf "$dir/deb"
}

# kernel_compiler TREE: the compiler that built it.
kernel_compiler() {
	local version
	version=$(sed -n 's/^CONFIG_CLANG_VERSION=\([1-9][0-9]*\)[0-9]\{4\}$/\1/p' "$1/.config")
	if [ -z "$version" ]; then
		echo gcc
	elif command -v "clang-$version" >/dev/null; then
		echo "clang-$version"
	else
		echo clang
	fi
}

kernel_make() {
	LIBCLANG_PATH=$LIBCLANG_DIR make -C "$1/src" O="$1/obj" CC="$KERNEL_CC" BINDGEN="$BINDGEN_PATH" RUSTC=/usr/bin/rustc "${@:2}"
}

kernel_configure() {
	local dir=$1 option
	shift
	kernel_make "$dir" rustavailable
	kernel_make "$dir" tinyconfig
	cat "$@" >>"$dir/obj/.config"
	kernel_make "$dir" olddefconfig
	# Every option that was asked for must have survived: a renamed option or a missing dependency is told here,
	# not by a guest that does not boot.
	sed -n 's/^\(CONFIG_[A-Z0-9_]*=[ym]\)$/\1/p' "$@" | sort -u | while read -r option; do
		grep -qxF "$option" "$dir/obj/.config" || { echo "not accepted by the kernel's configuration: $option"; exit 1; }
	done
}

setup_kernel() {
	local key dir fragments=("$SETUP_DIR/kernel.config")
	if [ -n "${KDIR:-}" ]; then
		KERNEL_TREE=$(cd "$KDIR" 2>/dev/null && pwd) || die "KDIR=$KDIR is not a directory" "give a configured and built kernel tree"
		[ -f "$KERNEL_TREE/.config" ] || die "KDIR=$KDIR has no .config" "configure and build that tree first (tools/setup/kernel.config lists what the lab needs)"
		grep -q '^CONFIG_RUST=y' "$KERNEL_TREE/.config" || die "the kernel in KDIR=$KDIR has no CONFIG_RUST=y" "enable it (make rustavailable says what is missing) and rebuild"
		[ -f "$KERNEL_TREE/arch/x86/boot/bzImage" ] || die "KDIR=$KDIR has no arch/x86/boot/bzImage" "build it: make bzImage modules"
		KERNEL_CC=$(kernel_compiler "$KERNEL_TREE")
		return
	fi
	KERNEL_CC=gcc
	case ${VRNIC_KERNEL:-} in
	'') ;;
	debug) fragments+=("$SETUP_DIR/kernel-debug.config") KERNEL_CC=clang-19 ;;
	races) fragments+=("$SETUP_DIR/kernel-races.config") ;;
	*) die "VRNIC_KERNEL=$VRNIC_KERNEL is no kernel" "set it to debug or races, or not at all" ;;
	esac
	# The object tree holds absolute paths and metadata of one compiler: both are part of the key.
	key=$(key_of "$SETUP_DIR/kernel.sh" "${fragments[@]}" "$(/usr/bin/rustc --version)" "$("$KERNEL_CC" --version | head -n 1)" \
		"$("$BINDGEN_PATH" --version)" "$CACHE")
	dir=$CACHE/kernel/$key
	KERNEL_TREE=$dir/obj
	ready "$dir" && return
	(
		apt_state guest-only empty "${KERNEL_SUITES[@]}"
		step "kernel source $KERNEL_SERIES" "$LOGS/kernel-source.log" 4 kernel_unpack "$dir"
	)
	step "kernel configuration" "$LOGS/kernel-config.log" 40 kernel_configure "$dir" "${fragments[@]}"
	step "kernel (about 11 minutes on 2 cores)" "$LOGS/kernel.log" "${KERNEL_LINES:-3050}" kernel_make "$dir" -j"$JOBS" bzImage modules
	finish "$dir"
}
