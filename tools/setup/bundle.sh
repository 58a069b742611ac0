# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# What `make bundle` needs: a tool for the guests' image, and a QEMU that does not depend on anything installed on the
# target machine. build/setup/qemu-unpacked becomes a link to it. Sourced by setup.sh.

setup_bundle() {
	[ -n "${VRNIC_NO_PACKAGES:-}" ] || install_missing "tools of the bundle" erofs-utils
	[ -f "$TREE/build/bundle.tar.gz" ] || need_space 2000 "the bundle" "$TREE"
	qemu_unpacked
	ln -sfn "$QEMU_PATH" "$TREE/build/setup/qemu-unpacked"
}
