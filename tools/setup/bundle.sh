# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# What a bundle is made with: a tool for the guests' image, and a QEMU that needs nothing of the machine that it runs on.
# build/setup/qemu-unpacked becomes a link to that. Sourced by setup.sh.

setup_bundle() {
	[ -n "${VRNIC_NO_PACKAGES:-}" ] || install_missing "tools of the bundle" erofs-utils
	qemu_unpacked
	ln -sfn "$QEMU_PATH" "$TREE/build/setup/qemu-unpacked"
}
