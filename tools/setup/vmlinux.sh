# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The kernel as QEMU starts it directly. To unpack itself takes an emulated processor as long as a third of what Linux
# does before its first process. Sourced by setup.sh.

vmlinux_unpack() { "$KERNEL_TREE/source/scripts/extract-vmlinux" "$KERNEL_TREE/arch/x86/boot/bzImage" >"$1.new" && mv "$1.new" "$1"; }

# setup_vmlinux: of KERNEL_TREE, where only the packed kernel was delivered. Where it was built, vmlinux is there.
setup_vmlinux() {
	local file=$KERNEL_TREE/lab/vmlinux
	[ -d "$KERNEL_TREE/lab" ] && [ ! -f "$file" ] || return 0
	step "unpacking the kernel" "$LOGS/vmlinux.log" 1 vmlinux_unpack "$file"
}
