# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# An uncompressed kernel, which QEMU starts directly. Decompressing a kernel takes an emulated processor a
# third of the time that Linux then needs until its first process. Sourced by setup.sh.

vmlinux_unpack() { "$KERNEL_TREE/source/scripts/extract-vmlinux" "$KERNEL_TREE/arch/x86/boot/bzImage" >"$1.new" && mv "$1.new" "$1"; }

# setup_vmlinux: unpacks the kernel of KERNEL_TREE if it came as a package, which has only the compressed one. A tree
# that was built here has vmlinux.
setup_vmlinux() {
	local file=$KERNEL_TREE/lab/vmlinux
	[ -d "$KERNEL_TREE/lab" ] && [ ! -f "$file" ] || return 0
	step "unpacking the kernel" "$LOGS/vmlinux.log" 1 vmlinux_unpack "$file"
}
