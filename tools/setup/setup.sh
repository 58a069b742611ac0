#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Prepares what `make run` needs, and links it in build/setup and build/kernel. Quick when nothing is to be done.
# usage: setup.sh PART...
#   packages    of this machine
#   tests       packages that tests and checks need besides
#   kernel      the one that VRNIC_KERNEL or KDIR names
#   qemu
#   guest       the guests' root directory
#   apps        a second one, for `make test-apps`
#   userland    RDMA programs of a newer release, for tests
#   bundle      what `make bundle` needs besides
#   packaging   a Debian 13 to build packages in
#   disk        a disk image with cloud-init, for `make test-disk`
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$SETUP_DIR/packages.sh"
. "$SETUP_DIR/compilers.sh"
. "$SETUP_DIR/source.sh"
. "$SETUP_DIR/initramfs.sh"
. "$SETUP_DIR/stock.sh"
. "$SETUP_DIR/kernel.sh"
. "$SETUP_DIR/vmlinux.sh"
. "$SETUP_DIR/qemu.sh"
. "$SETUP_DIR/guest.sh"
. "$SETUP_DIR/userland.sh"
. "$SETUP_DIR/bundle.sh"
. "$SETUP_DIR/packaging.sh"
. "$SETUP_DIR/disk.sh"

mkdir -p "$TREE/build/setup"
rm -f "$FAILED"
for part in "$@"; do
	case $part in
	packages | tests | kernel | qemu | guest | apps | userland | bundle | packaging | disk) ;;
	*) die "unknown part '$part'" "parts are: packages tests kernel qemu guest apps userland bundle packaging disk" ;;
	esac
	if [ "$part" = kernel ]; then
		# Kernels may be prepared side by side; they share the compilers.
		(lock compilers; setup_compilers)
		lock "kernel-${VRNIC_KERNEL:-stock}"
	else
		lock "$part"
	fi
	"setup_$part"
	[ "$part" != kernel ] || setup_vmlinux
done
