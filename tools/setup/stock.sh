# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Debian's own kernel, from Debian 13 backports, which has the first one with the Rust that the driver needs. The
# packages contain the kernel, its modules and its configuration. A module in Rust also needs the metadata of the
# kernel's crates, which no package contains: it is generated here from the same source with the same compilers. Sourced
# by setup.sh.

# Modules for hardware that no VM here has: two thirds of all modules.
STOCK_WITHOUT=(
	sound drivers/{accel,comedi,gpu,hid,hwmon,iio,infiniband/hw,media,mmc,mtd,net/ethernet,net/wireless,platform,staging,usb}
)

# stock_version: prints the version of the newest such kernel, as `uname -r` has it. Needs the state of apt_state.
stock_version() {
	apt-cache pkgnames "linux-headers-$KERNEL_SERIES" |
		sed -n "s/^linux-headers-\($KERNEL_SERIES[.0-9]*+deb13-amd64\)$/\1/p" | sort -V | tail -n 1
}

stock_unpack() {
	local dir=$1 version=$2 tmp=$1/packages root=$1/root
	rm -rf "$dir"
	mkdir -p "$tmp" "$root/lib/modules"
	apt_fetch "$tmp" linux-{base,binary,modules,headers}-"$version" busybox-static
	for deb in "$tmp"/linux-{base,binary,headers}-*.deb "$tmp"/busybox-static*.deb; do
		echo "unpacking $(basename "$deb")"
		dpkg-deb -x "$deb" "$tmp"
	done
	echo "unpacking its modules"
	dpkg-deb --fsys-tarfile "$tmp"/linux-modules-*.deb |
		tar -C "$tmp" -x $(printf -- "--exclude=./usr/lib/modules/$version/kernel/%s " "${STOCK_WITHOUT[@]}")
	mv "$tmp/usr/lib/modules/$version" "$root/lib/modules/"
	# depmod reads all modules before every run of the lab: this takes 0.2 seconds if they are unpacked, 3 if not.
	find "$root" -name '*.ko.xz' -print0 | xargs -0 -n 64 -P "$JOBS" xz -d
	# Their types for BPF, which the kernel checks when it loads them: a fifth of the time that a VM without KVM boots.
	find "$root" -name '*.ko' -print0 | xargs -0 -n 64 -P "$JOBS" "$COMPILERS_DIR/bin/x86_64-linux-gnu-strip" -g -R .BTF
	depmod -b "$root" "$version"
}

stock_prepare() {
	local dir=$1 version=$2 headers=$1/packages/usr/src/linux-headers-$2 changed
	mkdir -p "$dir/obj"
	cp "$headers/.config" "$dir/obj/"
	# The part of the version that the source does not have.
	echo "+${version#*+}" >"$dir/obj/localversion"
	kernel_make "$dir" olddefconfig
	# This also checks the compilers, which are part of the configuration. How modules are signed does not matter: ours are
	# not.
	if changed=$(diff "$headers/.config" "$dir/obj/.config" | grep '^[<>]' | grep -vE 'MODULE_SIG|OPENSSL'); then
		printf 'not what Debian configured: %s\n' "$changed"
		return 1
	fi
	kernel_make "$dir" -j"$JOBS" modules_prepare
	[ "$(cat "$dir/obj/include/config/kernel.release")" = "$version" ] || {
		echo "this source is of another version: $(cat "$dir/obj/include/config/kernel.release")"
		return 1
	}
	cp "$headers/Module.symvers" "$dir/obj/"
}

# stock_lab: puts what the lab boots where the lab looks for it.
stock_lab() {
	local dir=$1 version=$2
	mkdir -p "$dir/obj/arch/x86/boot" "$dir/obj/lab"
	mv "$dir/root/lib/modules/$version/vmlinuz" "$dir/obj/arch/x86/boot/bzImage"
	ln -s "$dir/root/lib/modules/$version" "$dir/obj/lab/modules"
	mv "$dir/packages/usr/bin/busybox" "$dir/obj/lab/"
	initramfs_make "$dir/obj/lab/busybox" "$dir/root" "$version" "$dir/obj/lab/initramfs" virtio_pci 9pnet_virtio 9p
	rm -rf "$dir/packages"
}

# setup_stock: sets KERNEL_TREE and KERNEL_VARIABLES. An existing kernel is kept: delete its directory to get a newer
# one from Debian.
setup_stock() {
	local key dir version bin=$COMPILERS_DIR/bin
	local -x APT_CONFIG
	KERNEL_VARIABLES=(
		CROSS_COMPILE="$bin/x86_64-linux-gnu-" CC="$bin/x86_64-linux-gnu-gcc-14" PAHOLE="$bin/pahole"
		RUSTC="$bin/rustc" HOSTRUSTC="$bin/rustc" BINDGEN="$bin/bindgen"
	)
	# The object tree contains absolute paths and metadata of one compiler: both are part of the key.
	key=$(key_of "$SETUP_DIR"/{stock,initramfs,source}.sh "$SETUP_DIR/initramfs-init" "$COMPILERS_DIR" \
		"$(gcc --version | head -n 1)" "$CACHE")
	for dir in "$CACHE/stock"/*-"$key"; do
		KERNEL_TREE=$dir/obj
		ready "$dir" && [ -f "$KERNEL_TREE/source/Makefile" ] && [ -f "$KERNEL_TREE/rust/libkernel.rmeta" ] && return
	done
	need_space 1000 "Debian's kernel and what its modules are built with"
	apt_state guest-only empty "${KERNEL_SUITES[@]}"
	version=$(stock_version)
	[ -n "$version" ] || die "the Debian mirror of this machine has no kernel $KERNEL_SERIES for amd64 in trixie-backports" \
		"use a mirror that has it, or give a built kernel tree: KDIR="
	kernel_source
	dir=$CACHE/stock/$version-$key
	KERNEL_TREE=$dir/obj
	mkdir -p "$CACHE/stock"
	step "Debian's kernel $version" "$LOGS/stock.log" 11 stock_unpack "$dir" "$version"
	step "metadata of its Rust" "$LOGS/stock-prepare.log" 225 stock_prepare "$dir" "$version"
	step "its initramfs" "$LOGS/initramfs.log" 2 stock_lab "$dir" "$version"
	finish "$dir"
}
