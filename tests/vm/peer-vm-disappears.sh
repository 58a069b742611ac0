# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The peer's VM disappears (QEMU is killed). The survivor's requests end with RETRY_EXC, and it can communicate with the
# VM once that is back.
# lab: fabric=roce
# lab: fabric=local
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
# lab: fresh
. "$LAB_LIB"

on -t 90 b sh -c "vrnic-verbs-check --device $DEV --gid $GID_INDEX --server; true" &
server=$!
on -t 120 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --client "$IP_b" --survivor > "$LAB_DIR/survivor" &
survivor=$!
within 60 grep -sq 'kill the peer now' "$LAB_DIR/survivor" || fail "the remaining VM's program is not ready"
lab kill b
wait $server || true
wait $survivor || { cat "$LAB_DIR/survivor"; fail "the remaining VM's program did not get the expected error"; }
cat "$LAB_DIR/survivor"
on -t 60 a vrnic-stress --device "$DEV" --seconds 2
lab boot b
on -t 60 b vrnic-stress --device "$DEV" --gid "$GID_INDEX" --server --seconds 2 &
server=$!
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --client "$IP_b" --seconds 2
wait $server
