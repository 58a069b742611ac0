#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Prepares what `make run` and the tests need, and links it in build/setup and build/kernel. Quick if nothing is to be
# done.
# usage: setup.sh PART...
#   packages    packages to install on this machine
#   tests       more packages, for tests and checks
#   kernel      the kernel that VRNIC_KERNEL or KDIR names
#   qemu        a QEMU with vfio-user-pci
#   guest       the guests' root directory
#   apps        a second root directory, for `make test-apps`
#   image       a root directory with packages that a lab file names (VRNIC_IMAGE, VRNIC_IMAGE_PACKAGES)
#   userland    RDMA programs of a newer release, for tests
#   bundle      what `make bundle` needs in addition
#   packaging   a Debian 13 root directory to build packages in
#   disk        a disk image with cloud-init, for `make test-disk`
set -euo pipefail
. "$(dirname "$0")/lib.sh"
# A subshell knows no traps, and what it starts ignores ^C. So this process only waits, and ends all others when it is
# ended.
if [ -z "${SETUP_SUPERVISED:-}" ]; then
	SETUP_SUPERVISED=yes bash "$0" "$@" &
	STEP_PID=$!
	wait "$STEP_PID" && status=0 || status=$?
	STEP_PID=
	exit "$status"
fi
. "$SETUP_DIR/packages.sh"
. "$SETUP_DIR/compilers.sh"
. "$SETUP_DIR/source.sh"
. "$SETUP_DIR/initramfs.sh"
. "$SETUP_DIR/stock.sh"
. "$SETUP_DIR/kernel.sh"
. "$SETUP_DIR/vmlinux.sh"
. "$SETUP_DIR/qemu.sh"
. "$SETUP_DIR/guest.sh"
. "$SETUP_DIR/image.sh"
. "$SETUP_DIR/userland.sh"
. "$SETUP_DIR/bundle.sh"
. "$SETUP_DIR/packaging.sh"
. "$SETUP_DIR/disk.sh"

deepest=$TREE
for dir in "$TREE/build" "$TREE/build/setup"; do [ ! -e "$dir" ] || deepest=$dir; done
for dir in "$deepest" "$TREE/tools/target"; do
	[ ! -e "$dir" ] || [ -w "$dir" ] || {
		echo "setup: this user may not write to $dir, which belongs to $(stat -c %U "$dir")" >&2
		echo "       use a source tree of your own, or give this one to this user with chown -R" >&2
		exit 1
	}
done
mkdir -p "$TREE/build/setup"
rm -f "$FAILED"
[ -d "$TREE/tools/target/release" ] || need_space 2000 "what is built" "$TREE"
for part in "$@"; do
	case $part in
	packages | tests | kernel | qemu | guest | apps | image | userland | bundle | packaging | disk) ;;
	*) die "unknown part '$part'" "parts are: packages tests kernel qemu guest apps image userland bundle packaging disk" ;;
	esac
	if [ "$part" = kernel ]; then
		# A tree that does not fit is told before anything is downloaded.
		[ -z "${KDIR:-}" ] || (kernel_own)
		# Several kernels may be prepared in parallel; they share the compilers.
		(lock compilers; setup_compilers)
		lock "kernel-${VRNIC_KERNEL:-stock}"
	else
		lock "$part"
	fi
	"setup_$part"
	[ "$part" != kernel ] || setup_vmlinux
done
