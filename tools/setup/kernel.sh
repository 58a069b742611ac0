#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The guests' kernels. VRNIC_KERNEL selects one of:
#
#   stock   Debian's own, see stock.sh
#   lab     the same source with tinyconfig plus kernel.config: KUnit, fault injection, and other cheap checks
#   debug   lab plus kernel-storage.config and kernel-debug.config; built by clang
#   races   lab plus kernel-storage.config and kernel-races.config
#
# A user's own configured and built tree (KDIR=) is used unchanged. In build/kernel/NAME, where NAME is one of these or
# `own`, `tree` becomes a link to the tree that modules are built with, and `make` runs make in it with the compilers
# that built the kernel. Sourced by setup.sh.

# kernel_compiler TREE: prints the name of the C compiler that built TREE.
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

# kernel_make DIRECTORY ARGS...: runs make with DIRECTORY/obj as the object tree.
kernel_make() { LIBCLANG_PATH=$LIBCLANG_DIR make -C "$SOURCE_DIR" O="$1/obj" "${KERNEL_VARIABLES[@]}" "${@:2}"; }

# kernel_compilers CC RUSTC: sets KERNEL_VARIABLES for a kernel built by these compilers.
kernel_compilers() { KERNEL_VARIABLES=(CC="$1" RUSTC="$2" BINDGEN="$COMPILERS_DIR/bin/bindgen"); }

kernel_configure() {
	local dir=$1 option
	shift
	rm -rf "$dir"
	mkdir -p "$dir/obj"
	kernel_make "$dir" rustavailable
	kernel_make "$dir" tinyconfig
	cat "$@" >>"$dir/obj/.config"
	kernel_make "$dir" olddefconfig
	# Check that every requested option is in the result: so a renamed option or a missing dependency is reported here, not
	# by a guest that does not boot.
	sed -n 's/^\(CONFIG_[A-Z0-9_]*=[ym]\)$/\1/p' "$@" | sort -u | while read -r option; do
		grep -qxF "$option" "$dir/obj/.config" || { echo "not accepted by the kernel's configuration: $option"; exit 1; }
	done
}

# kernel_own: sets KERNEL_TREE to the tree that KDIR= names, after checking that modules can be built for it.
kernel_own() {
	local release file
	KERNEL_TREE=$(cd "$KDIR" 2>/dev/null && pwd) || die "KDIR=$KDIR is not a directory" "give a configured and built kernel tree"
	[ -f "$KERNEL_TREE/.config" ] || die "KDIR=$KDIR has no .config" "configure and build that tree first (tools/setup/kernel.config lists what the lab needs)"
	grep -q '^CONFIG_RUST=y' "$KERNEL_TREE/.config" || die "the kernel in KDIR=$KDIR has no CONFIG_RUST=y" "enable it (make rustavailable says what is missing) and rebuild"
	grep -q '^CONFIG_INFINIBAND=[ym]' "$KERNEL_TREE/.config" || die "the kernel in KDIR=$KDIR has no CONFIG_INFINIBAND" "enable it (tools/setup/kernel.config lists what the lab needs) and rebuild"
	for file in include/config/kernel.release arch/x86/boot/bzImage Module.symvers rust/libkernel.rmeta; do
		[ -f "$KERNEL_TREE/$file" ] || die "KDIR=$KDIR has no $file" "build that kernel: make bzImage modules"
	done
	release=$(cat "$KERNEL_TREE/include/config/kernel.release")
	[ "$(printf '%s\n' "$KERNEL_SERIES" "$release" | sort -V | head -n 1)" = "$KERNEL_SERIES" ] ||
		die "the kernel in KDIR=$KDIR is $release, and the driver needs $KERNEL_SERIES or newer" "give the tree of a newer kernel, or unset KDIR: then it is Debian's"
}

# kernel_own_compilers: selects the compilers that built the tree of KDIR=. Only the rustc that wrote its metadata can
# read it.
kernel_own_compilers() {
	local made rustc
	made=$(sed -n 's/^CONFIG_RUSTC_VERSION_TEXT="\(.*\)"$/\1/p' "$KERNEL_TREE/.config")
	for rustc in /usr/bin/rustc "$COMPILERS_DIR/bin/rustc"; do
		[ "$("$rustc" --version)" = "$made" ] || continue
		kernel_compilers "$(kernel_compiler "$KERNEL_TREE")" "$rustc"
		return
	done
	die "the kernel in KDIR=$KDIR was built by another Rust: $made" "rebuild it with RUSTC=/usr/bin/rustc or RUSTC=$rustc"
}

# kernel_lab CC FRAGMENT...: builds Debian's source with the compiler CC and these configuration fragments.
kernel_lab() {
	local key dir cc=$1
	local -x APT_CONFIG
	shift
	kernel_compilers "$cc" /usr/bin/rustc
	# The object tree contains absolute paths and metadata of one compiler: both are part of the key.
	key=$(key_of "$SETUP_DIR"/{kernel,source}.sh "$@" "$(/usr/bin/rustc --version)" "$("$cc" --version | head -n 1)" \
		"$COMPILERS_DIR" "$CACHE")
	dir=$CACHE/kernel/$key
	KERNEL_TREE=$dir/obj
	ready "$dir" && [ -f "$KERNEL_TREE/source/Makefile" ] && return
	need_space 1500 "the lab's kernel"
	apt_state guest-only empty "${KERNEL_SUITES[@]}"
	kernel_source
	mkdir -p "$CACHE/kernel"
	step "kernel configuration" "$LOGS/kernel-config.log" 40 kernel_configure "$dir" "$@"
	step "kernel (about 11 minutes on 2 cores)" "$LOGS/kernel.log" "${KERNEL_LINES:-3050}" kernel_make "$dir" -j"$JOBS" bzImage modules
	finish "$dir"
}

# kernel_record NAME: writes build/kernel/NAME.
kernel_record() {
	local dir=$TREE/build/kernel/$1
	mkdir -p "$dir"
	ln -sfn "$KERNEL_TREE" "$dir/tree"
	{
		echo '#!/bin/sh'
		echo '# Builds modules for this kernel: make M=DIRECTORY modules'
		printf "exec env LIBCLANG_PATH='%s' make --no-print-directory -C '%s'" "$LIBCLANG_DIR" "$KERNEL_TREE"
		printf " '%s'" "${KERNEL_VARIABLES[@]}"
		echo ' "$@"'
	} >"$dir/make.new"
	chmod +x "$dir/make.new"
	# If nothing changed, the file keeps its time.
	if cmp -s "$dir/make.new" "$dir/make"; then rm "$dir/make.new"; else mv "$dir/make.new" "$dir/make"; fi
}

setup_kernel() {
	local name=${VRNIC_KERNEL:-stock} lab=$SETUP_DIR/kernel.config storage=$SETUP_DIR/kernel-storage.config
	[ -z "${KDIR:-}" ] || name=own
	case $name in
	own) kernel_own ;;
	stock | lab | debug | races) ;;
	*) die "VRNIC_KERNEL=$name is no kernel" "set it to stock, lab, debug or races" ;;
	esac
	setup_compilers
	case $name in
	own) kernel_own_compilers ;;
	stock) setup_stock ;;
	lab) kernel_lab gcc "$lab" ;;
	debug) kernel_lab clang-19 "$lab" "$storage" "$SETUP_DIR/kernel-debug.config" ;;
	races) kernel_lab gcc "$lab" "$storage" "$SETUP_DIR/kernel-races.config" ;;
	esac
	kernel_record "$name"
}
