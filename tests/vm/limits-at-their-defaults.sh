# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The limits of a device that nobody configured hold at their values: protection domains, completion queues, queue pairs.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=900
# Memory regions are left to the smaller device of limits-to-the-last-object: a million take ten minutes.
. "$LAB_LIB"

check() { on -t 880 "$1" vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --slow "${@:2}"; }
at_once 'check a pd-count cq-count' 'check b qp-count'
