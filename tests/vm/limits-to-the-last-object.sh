# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Every count that the device reports can be created, one more is refused, and all can be created again.
# lab: timeout=400
. "$LAB_LIB"

on -t 390 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --slow object-counts
