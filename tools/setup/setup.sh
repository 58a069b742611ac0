#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Prepares everything `make run` needs and writes build/setup.env. Quick when nothing is to be done.
# usage: setup.sh [packages] [toolchain] [kernel] [qemu] [guest] [userland]     (default: all of them)
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$SETUP_DIR/packages.sh"
. "$SETUP_DIR/kernel.sh"
. "$SETUP_DIR/qemu.sh"
. "$SETUP_DIR/guest.sh"
. "$SETUP_DIR/userland.sh"

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(packages toolchain kernel qemu guest userland)
lock
mkdir -p "$TREE/build"
for part in "${parts[@]}"; do
	case $part in
	packages | toolchain | kernel | qemu | guest | userland) "setup_$part" ;;
	*) die "unknown part '$part'" "parts are: packages toolchain kernel qemu guest userland" ;;
	esac
done

# What later steps (make, the lab) read. Parts not asked for keep their former line.
env=$TREE/build/setup.env
touch "$env"
{
	record() { if [ -n "$2" ]; then printf '%s=%s\n' "$1" "$2"; else grep "^$1=" "$env" || true; fi; }
	record VRNIC_KDIR "${KERNEL_TREE:-}"
	record VRNIC_KERNEL_CC "${KERNEL_CC:-}"
	record VRNIC_QEMU "${QEMU_PATH:-}"
	record VRNIC_GUEST_ROOT "${GUEST_ROOT:-}"
	record VRNIC_USERLAND "${USERLAND_DIR:-}"
	record VRNIC_BINDGEN "${BINDGEN_PATH:-}"
	record VRNIC_LIBCLANG "${LIBCLANG_DIR:-}"
	record VRNIC_HEADERS "${HEADERS_DIR:-}"
} >"$env.new"
mv "$env.new" "$env"
