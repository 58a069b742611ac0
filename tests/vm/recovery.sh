# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A device that fails recovers by itself. Its programs and its kernel users are told, everything that they posted is
# flushed, and a program that opens the device again continues in the same process. A device that fails again and again
# is given up, and works again when its driver is rebound. A device that was removed from its slot is completely gone
# until it is put back and found again.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=600
# lab: fresh
# lab: vrnicd faults = true
# Linux expects that a driver has reset its device, which is impossible for a device that is gone.
# lab: allow-kernel-warning device_release_driver_internal device_remove
# Linux's method that opens a device for a process leaks the process when the driver or the control group refuses it
# (uverbs_std_types_device.c, UVERBS_METHOD_GET_CONTEXT, frees the context without rdma_restrack_put()).
# lab: allow-kernel-leak dup_task_struct|copy_signal|prepare_creds|alloc_task_exec_state
. "$LAB_LIB"

virtio=$(bound a)

on -t 400 b sh -c "until [ -e /tmp/enough ]; do vrnic-stress --device $DEV --gid $GID_INDEX --port 18700 --seconds 3 --qps 2 || exit 1; done" &
bystander=$!

for fault in needs-reset event-device-fatal engine-panic; do
	before=$(logged a "restarting the device")
	before_failure $fault "vrnic-stress --device $DEV --seconds $((60 * LAB_SLOWNESS)) --patience 15"
	vrnicctl fault add -d a $fault >/dev/null
	after_failure $fault
	tail -n 3 "$LAB_DIR/program"
	vrnicctl fault clear >/dev/null
	logs a "restarting the device" "$before" || fail "$fault: the driver did not restart the device"
	active a
	on -t 60 a vrnic-stress --device "$DEV" --seconds 2 || fail "$fault: the device does not work again"
done

# A device that refuses to stop a kernel queue pair has failed too, because its user frees the buffers next.
on a modprobe vrnic-drain
before=$(logged a "restarting the device")
vrnicctl fault add -d a command-fails code=modify-qp status=not-found >/dev/null
on a modprobe -r vrnic-drain
on a dmesg | tail -n 40 | found "drained: 16 receives flushed, .* 0 others" || fail "the kernel's receives were not flushed"
within 20 logs a "it does not stop a queue pair" 0 || fail "a device that does not stop a queue pair keeps running"
vrnicctl fault clear >/dev/null
within 60 logs a "restarting the device" "$before" || fail "the driver did not restart the device"
active a
on -t 60 a vrnic-stress --device "$DEV" --seconds 2

# A device that is removed from its slot.
slot=/sys/bus/pci/devices/$(on a sh -c "basename \$(dirname \$(readlink -f /sys/bus/virtio/devices/$virtio))")
found_again() {
	on -t 60 a sh -c "echo 1 >$slot/remove; echo 1 >/sys/bus/pci/rescan"
	active a
}
shows() { vrnicctl -j devices | grep -A3 '"name": "a"' | found "\"state\": \"$1\""; }
on -t 60 a sh -c "timeout 50 ibv_asyncwatch -d $DEV > /tmp/events 2>&1; true" &
watch=$!
on -t 100 a sh -c "vrnic-stress --device $DEV --seconds $((60 * LAB_SLOWNESS)) --patience 15; echo exit \$?" > "$LAB_DIR/victim" &
victim=$!
rm -f "$LAB_DIR/program"
on -t 200 a sh -c "vrnic-verbs-check --device $DEV --gid $GID_INDEX --outlive; echo program exit \$?" > "$LAB_DIR/program" &
program=$!
on a modprobe vrnic-drain
within 60 grep -sq 'kill the device' "$LAB_DIR/program" || fail "removed: the program is not ready: $(cat "$LAB_DIR/program")"
within 20 on a grep -q 'async event FD' /tmp/events || fail "removed: ibv_asyncwatch does not start"
before=$(logged a "restarting the device")
vrnicctl fault add -d a removed >/dev/null
wait $victim || fail "removed: the program does not end"
grep -q 'exit 1' "$LAB_DIR/victim" || fail "removed: the program did not see an error: $(cat "$LAB_DIR/victim")"
wait $program || fail "removed: the program that polls does not end: $(cat "$LAB_DIR/program")"
grep -q 'program exit 0' "$LAB_DIR/program" || fail "removed: not everything was flushed: $(cat "$LAB_DIR/program")"
within 20 on a grep -q DEVICE_FATAL /tmp/events || fail "removed: no device-fatal event"
within 20 logs a "device failed: it is gone" 0 ||
	fail "removed: the driver does not notice the removal: $(on a dmesg | tail -n 5)"
[ "$(on a od -An -tx4 -N4 "$slot/config")" = " ffffffff" ] || fail "removed: the slot is not empty"
shows removed || fail "removed: vrnicctl does not show it: $(vrnicctl -j devices)"
on -t 30 a ibv_rc_pingpong -d "$DEV" -g "$GID_INDEX" >/dev/null 2>&1 && fail "removed: the removed device works"
on a pkill -x ibv_asyncwatch || true
wait $watch
driver a unbind "$virtio"
on a dmesg | tail -n 60 | found "drained: 16 receives flushed, 16 of them before, 0 others" ||
	fail "removed: the kernel's receives were not flushed: $(on a dmesg | grep drained)"
on a modprobe -r vrnic-drain
vrnicctl fault clear >/dev/null
within 10 shows down || fail "removed: the device does not come back"
found_again
on -t 60 a vrnic-stress --device "$DEV" --seconds 2
# It is put back while its old driver is still bound.
failed=$(logged a "device failed: it is gone")
vrnicctl fault add -d a removed >/dev/null
within 20 logs a "device failed: it is gone" "$failed" || fail "removed: the driver does not notice the second removal"
vrnicctl fault clear >/dev/null
within 10 shows down || fail "removed: the device does not come back the second time"
found_again
on -t 60 a vrnic-stress --device "$DEV" --seconds 2
[ "$(logged a "restarting the device")" = "$before" ] || fail "removed: the driver restarts a device that is gone"
virtio=$(bound a)

on b touch /tmp/enough
wait $bystander || fail "the other VM was disturbed"

# A device that fails whenever it has recovered is eventually given up.
fails_again() {
	vrnicctl fault add -d a needs-reset >/dev/null
	logs a "giving up" 0
}
within 240 fails_again || fail "the driver never gives up: $(on a dmesg | tail -n 30)"
attempts=$(logged a "restarting the device")
vrnicctl fault clear >/dev/null
sleep 5
[ "$(logged a "restarting the device")" = "$attempts" ] || fail "the driver did not give up"
driver a unbind "$virtio"
driver a bind "$virtio"
active a
on -t 60 a vrnic-stress --device "$DEV" --seconds 2
