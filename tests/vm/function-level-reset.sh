# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The PCI function is reset (FLR). Without a driver, the device is as new afterwards. Under traffic, programs get errors
# and the device-fatal event, QEMU and the other VM are not affected, and the driver recovers the device.
# lab: fabric=local
# lab: fabric=roce
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
# lab: fresh
# lab: allow-leaks
. "$LAB_LIB"

virtio=$(bound a)
function=$(on a sh -c "basename \$(dirname \$(readlink -f /sys/bus/virtio/devices/$virtio))")
reset=/sys/bus/pci/devices/$function
[ "$(on a cat "$reset/reset_method")" = af_flr ] || on a sh -c "echo af_flr > $reset/reset_method"
resets() { grep -c 'function-level reset' "$(lab log)" || true; }
reset_seen() { [ "$(resets)" -gt "$before" ]; }

works() {
	active a
	on -t 60 a vrnic-stress --device "$DEV" --seconds 3
}

driver a unbind "$virtio"
before=$(resets)
on a sh -c "echo 1 > $reset/reset"
within 20 reset_seen || fail "the device was not reset"
vrnicctl --json devices | grep -A3 '"name": "a"' | found '"state": "down"' ||
	fail "the device is not in its initial state"
driver a bind "$virtio"
works

busy b 18700 &
bystander=$!
on -t 90 a sh -c "vrnic-stress --device $DEV --seconds 60 --patience 15; echo exit \$?" > "$LAB_DIR/victim" &
victim=$!
on -t 200 a sh -c "RDMAV_ALLOW_DISASSOC_DESTROY=1 vrnic-verbs-check --device $DEV --gid $GID_INDEX --recover zero-length; echo program exit \$?" > "$LAB_DIR/program" &
program=$!
within 60 grep -sq 'kill the device' "$LAB_DIR/program" || fail "the program is not ready: $(cat "$LAB_DIR/program")"
for round in 1 2 3; do
	before=$(resets)
	on a sh -c "echo 1 > $reset/reset"
	within 20 reset_seen || fail "the device was not reset under traffic"
done
wait $victim || fail "the program does not end"
cat "$LAB_DIR/victim"
grep -q 'exit 1' "$LAB_DIR/victim" || fail "the program did not see an error"
wait $program || fail "the program that waits does not end"
grep -q 'program exit 0' "$LAB_DIR/program" || fail "the program could not continue: $(cat "$LAB_DIR/program")"
works
enough b 18700
wait $bystander || fail "the other VM was disturbed"
