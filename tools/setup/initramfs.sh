# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# An initramfs for a kernel that needs modules to mount its root directory. Contains these modules, busybox, and
# initramfs-init. Sourced by setup.sh and bundle.sh.

# initramfs_make BUSYBOX ROOT VERSION FILE MODULE...: builds the initramfs FILE from these modules of
# ROOT/lib/modules/VERSION and the modules that they need. That directory must have depmod's tables, and BUSYBOX must be
# linked statically.
initramfs_make() {
	local busybox=$1 root=$2 version=$3 file=$4 dir=$4.d applet module
	shift 4
	rm -rf "$dir"
	mkdir -p "$dir"/{bin,dev,lib,proc,root}
	install -m 755 "$SETUP_DIR/initramfs-init" "$dir/init"
	install -m 755 "$busybox" "$dir/bin/busybox"
	for applet in cat insmod mount sh switch_root umount; do ln -s busybox "$dir/bin/$applet"; done
	for module in "$@"; do
		# Prints an insmod line for each module that this one needs, and for itself last; other lines name modules that are
		# built in.
		modprobe -C /dev/null -d "$root" -S "$version" --show-depends "$module" || return 1
	done >"$dir/lib/depends"
	sed -n 's/^insmod //p' "$dir/lib/depends" | awk '!seen[$1]++ { print $1 }' | while read -r module; do
		install -m 644 "$module" "$dir/lib/"
		basename "$module"
	done >"$dir/lib/list"
	rm "$dir/lib/depends"
	(cd "$dir" && find . | LC_ALL=C sort | "$busybox" cpio -o -H newc) >"$file"
	rm -rf "$dir"
}
