# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Exactly as many objects can be created as the device reports. One more is refused, and after destroying them, all can
# be created again.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=240
# Lower limits than the defaults, which would take minutes and gigabytes of the guest's memory.
# lab: vrnicd-device limits = { qp = 2000, cq = 3000, mr = 5000, pd = 1000, srq = 1500 }
. "$LAB_LIB"

on -t 230 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --slow count-at-its-limit
