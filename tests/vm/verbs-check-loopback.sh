# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Verbs do what the standard says, used rightly and wrongly, in loopback on one RNIC.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=300
. "$LAB_LIB"

on -t 290 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX"
