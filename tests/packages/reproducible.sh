#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Packages are the same, byte for byte, when they are built again: in another directory, in another time zone and locale,
# with one processor, on a machine with another name, by a user with another umask. Inside the root directory in which
# packages are built, the path is always the same.
. "$(dirname "$0")/fresh.bash"
again=$(mktemp -d "$TREE/build/packages-again.XXXXXX")
trap '[ -z "$STEP_PID" ] || end_all "$STEP_PID"; as_root rm -rf "$again"' EXIT
(
	umask 077
	export BUILD_ENVIRONMENT='TZ=NZST-12 LC_ALL=C' BUILD_HOSTNAME=another
	processor=$(taskset -cp "$BASHPID" | sed 's/.*: \([0-9]*\).*/\1/')
	taskset -c "$processor" bash "$TREE/tools/packages/build.sh" "$again"
)
for package in "$PACKAGES"/*.deb; do
	cmp "$package" "$again/$(basename "$package")" || { echo "FAILED: $(basename "$package") differs"; exit 1; }
	echo "the same: $(basename "$package")"
done
[ "$(ls "$PACKAGES"/*.deb | wc -l)" = "$(ls "$again"/*.deb | wc -l)" ]
echo "ok: packages are reproducible"
