#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Builds vrnic.ko in the current directory for an installed kernel. A module in Rust needs the metadata of the kernel's
# crates. A kernel tree that was built on this machine has it. Header packages lack it: then this script generates it
# from the source of exactly that version, with the compilers that built the kernel.
#
#   dkms-build.sh RELEASE TREE      the release as `uname -r` has it; TREE is what modules are built with
set -eu
release=$1 tree=$2
export LC_ALL=C
made=$PWD/kernel

# say TEXT: prints TEXT to the log of dkms and to the standard error of the program that started dkms, where otherwise
# only the path of that log appears.
say() {
	printf '%s\n' "$1"
	pid=$PPID
	while [ "$pid" -gt 1 ] && [ "/proc/$pid/fd/2" -ef /proc/self/fd/2 ]; do
		pid=$(sed -n 's/^PPid:[[:blank:]]*//p' "/proc/$pid/status")
	done
	[ "$pid" -le 1 ] || printf '\nvrnic: %s\n' "$1" 2>/dev/null >>"/proc/$pid/fd/2" || :
}

missing=
# need WHAT WHAT_TO_DO: reports something missing and continues, so that one run reports everything that is missing.
need() {
	missing=yes
	say "$1; $2"
}

setting() { sed -n "s/^CONFIG_$1=\"\?\([^\"]*\)\"\?$/\1/p" "$tree/.config"; }

# compilers: checks for the tools that built the kernel. The kernel's symbol names contain the version of rustc, and its
# metadata can only be read by the rustc that wrote it. Debian's rust-src has the matching library sources.
compilers() {
	wanted=$(setting RUSTC_VERSION_TEXT)
	found=$(rustc --version 2>/dev/null || echo none)
	[ "$found" = "$wanted" ] || need "the kernel $release was built by $wanted, but this machine has $found" "install that version of rustc"
	[ -f "$(rustc --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/core/src/lib.rs" ] ||
		need "the sources of Rust's library are missing" "install rust-src of the version of rustc"
	cc=$(setting CC_VERSION_TEXT)
	cc=${cc%% *}
	command -v "$cc" >/dev/null || need "the compiler of the kernel, $cc, is missing" "install it (${cc##*gnu-})"
	for program in bindgen pahole bison flex bc make; do
		command -v "$program" >/dev/null || need "$program is missing" "install $program"
	done
}

# source_version DIRECTORY: prints the version of the kernel source in DIRECTORY.
source_version() { sed -n 's/^\(VERSION\|PATCHLEVEL\|SUBLEVEL\) = //p' "$1/Makefile" | paste -sd .; }

# find_source: sets source to the directory of the kernel's source, which it unpacks if necessary.
find_source() {
	version=${release%%[+-]*}
	series=$(printf '%s\n' "$version" | cut -d . -f 1,2)
	others=
	for name in "linux-source-$version" "linux-source-$series" "linux-$version"; do
		for place in "/usr/src/$name" "/usr/src/$name.tar.xz"; do
			source=$place
			if [ "$place" = "/usr/src/$name.tar.xz" ]; then
				[ -f "$place" ] || continue
				source=$made/source
				rm -rf "$source"
				mkdir "$source"
				tar -C "$source" --strip-components=1 -xf "$place"
			fi
			[ -f "$source/Makefile" ] || continue
			found=$(source_version "$source")
			[ "$found" != "$version" ] || return 0
			others="$others${others:+, }$found ($place)"
		done
	done
	if [ -n "$others" ]; then
		need "the kernel is $release, but /usr/src has the source of $others" "install the source of $version (linux-source-$series)"
	else
		need "the source of the kernel $release is missing" \
			"install linux-source-$series, or unpack the source of $version as /usr/src/linux-$version"
	fi
}

# prepare: generates the metadata in $made/obj from the configuration and the symbols of the kernel.
prepare() {
	mkdir "$made/obj"
	cp "$tree/.config" "$made/obj/"
	printf '%s\n' "${release#"$version"}" >"$made/obj/localversion"
	make -C "$source" O="$made/obj" CC="$cc" olddefconfig
	# How modules are signed does not matter here.
	if changed=$(diff "$tree/.config" "$made/obj/.config" | grep '^[<>]' | grep -vE 'MODULE_SIG|OPENSSL'); then
		say "the kernel's source changes the configuration of the kernel $release; $(printf '%s' "$changed" | head -n 5)"
		exit 1
	fi
	make -C "$source" O="$made/obj" CC="$cc" -j"$(nproc)" modules_prepare
	cp "$tree/Module.symvers" "$made/obj/"
	tree=$made/obj
}

# dkms sets these for the make that it runs itself.
unset KERNELRELEASE MAKEFLAGS ARCH
rm -rf "$made"
mkdir "$made"
compilers
if [ ! -f "$tree/rust/libkernel.rmeta" ]; then
	find_source
	[ -n "$missing" ] || prepare
fi
if [ -n "$missing" ]; then
	say "no module for the kernel $release; correct this and run: dkms autoinstall -k $release"
	exit 1
fi
make -C "$tree" M="$PWD" CC="$cc" -j"$(nproc)" modules
rm -rf "$made"
