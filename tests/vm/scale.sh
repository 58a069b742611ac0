# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Ten thousand queue pairs, a hundred thousand memory regions, five hundred processes at once: they work and go away.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=1800
# lab: fresh
. "$LAB_LIB"

many() { on -t 900 "$1" vrnic-scale --device "$DEV" --gid "$GID_INDEX" "$2" "$3"; }
at_once 'many a qp 10000' 'many b mr 100000'
many a process 500
