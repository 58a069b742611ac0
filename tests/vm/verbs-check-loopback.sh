# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Verbs, used correctly and incorrectly, behave as the standard says, in loopback on one RNIC.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=300
. "$LAB_LIB"

on -t 290 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX"
