# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A VM is halted under traffic. The driver resets the device before the processors stop, so that the device does not
# access memory any more. Users are told, and the other VM is not affected.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=240
# lab: fresh
. "$LAB_LIB"

state() { vrnicctl --json devices | grep -A3 '"name": "a"' | grep -o '"state": "[a-z]*"' | cut -d'"' -f4; }
is_down() { [ "$(state)" = down ]; }

busy b 18700 &
bystander=$!
(on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --port 18701 --server --seconds $((60 * LAB_SLOWNESS)) || true) &
server=$!
on -t 90 b sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --port 18701 --client $IP_a --seconds $((60 * LAB_SLOWNESS)) --patience 20 && exit 9; true" &
client=$!
connected b 18701
(on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --port 18702 --seconds $((60 * LAB_SLOWNESS)) || true) &
loopback=$!
sleep 4
[ "$(state)" = up ] || fail "the device of VM a is $(state)"
# LINUX_REBOOT_CMD_HALT: the VM keeps running, with stopped processors.
(on -t 30 a python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0xcdef0123)' || true) &
halt=$!
within 30 is_down || fail "the device of a halted VM is $(state)"
kill -0 "$(lab pid qemu-a)" || fail "VM a is gone"
wait $client || fail "the peer of the VM that was halted did not get an error"
is_down || fail "the device of a halted VM is $(state)"
enough b 18700
wait $bystander || fail "the other VM was disturbed"
lab qmp a '{"execute":"system_reset"}'
lab wait a
wait $server $loopback $halt || true
on -t 60 a vrnic-stress --device "$DEV" --seconds 3
