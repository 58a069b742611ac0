# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A VM is reset under traffic. Its peer gets errors, others are not affected, and the VM works again after it has
# booted.
# lab: fabric=roce
# lab: fabric=local
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
# lab: fresh
. "$LAB_LIB"

busy a 18700 &
bystander=$!
(on -t 60 b vrnic-stress --device "$DEV" --gid "$GID_INDEX" --port 18701 --server --seconds $((60 * LAB_SLOWNESS)) || true) &
server=$!
on -t 90 a sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --port 18701 --client $IP_b --seconds $((60 * LAB_SLOWNESS)) --patience 20 && exit 9; true" &
client=$!
connected a 18701
sleep 4
lab qmp b '{"execute":"system_reset"}'
wait $client || fail "the peer of the VM that was reset did not get an error"
enough a 18700
wait $bystander || fail "loopback traffic of another VM was disturbed"
lab wait b
wait $server || true
on -t 60 b vrnic-stress --device "$DEV" --seconds 3
