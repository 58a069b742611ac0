# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Random traffic with all operations runs in loopback on one RNIC. Every byte, completion and event is checked.
# lab: fabric=local
# lab: fabric=roce
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
. "$LAB_LIB"

on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 8 | tee "$LAB_DIR/all"
found -E ' [1-9][0-9]* flushes and atomic writes' "$LAB_DIR/all" || fail "operations of annex A19 were not tested"
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 6 --events --qps 6 --ud
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 6 --rnr --max-size 65536
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 6 --threads 3 --cqs 1 --sges 16
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 5 --srq --qps 6 --max-size 65536
