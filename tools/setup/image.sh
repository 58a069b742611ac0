# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A root directory with the packages that a lab file names (`packages`), beside those of the usual one. `vrnic-lab up`
# names the link in build/setup and the packages. Sourced by setup.sh.

setup_image() {
	local packages
	read -ra packages <<<"${VRNIC_IMAGE_PACKAGES:-}"
	[ -n "${VRNIC_IMAGE:-}" ] && [ "${#packages[@]}" -gt 0 ] ||
		die "this part of the setup needs VRNIC_IMAGE and VRNIC_IMAGE_PACKAGES" "use \`packages\` in a lab file, and run vrnic-lab up"
	packages=("${GUEST_PACKAGES[@]}" "${packages[@]}")
	IMAGE_ROOT=$CACHE/guest/$(key_of "$SETUP_DIR/guest.sh" "$SETUP_DIR/guest-init" "${packages[@]}")
	# Debian may have no such package. Nobody needs what is there by then.
	trap '[ -z "$STEP_PID" ] || end_all "$STEP_PID"
		[ -f "$IMAGE_ROOT.complete" ] || as_root rm -rf "$IMAGE_ROOT" "$IMAGE_ROOT.apt.conf"' EXIT
	guest_image "$VRNIC_IMAGE" 1300 "guest image with $VRNIC_IMAGE_PACKAGES" "${packages[@]}"
}
