# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A panic in the engine of one RNIC fails only that device. Its programs get errors and the device-fatal event, the
# other VM is not affected, and the driver recovers the device.
# lab: fabric=local
# lab: fabric=roce
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
# lab: vrnicd test_panic_on_sigusr1 = ["a"]
# lab: allow-leaks
. "$LAB_LIB"

busy b 18700 &
bystander=$!
on -t 60 a sh -c "ibv_asyncwatch -d $DEV > /tmp/events 2>&1; true" &
watch=$!
on -t 90 a sh -c "vrnic-stress --device $DEV --seconds $((60 * LAB_SLOWNESS)) --patience 15; echo exit \$?" > "$LAB_DIR/victim" &
victim=$!
on -t 150 a sh -c "vrnic-verbs-check --device $DEV --gid $GID_INDEX --outlive; echo poller exit \$?" > "$LAB_DIR/poller" &
poller=$!
within 60 grep -sq 'kill the device' "$LAB_DIR/poller" || fail "the program that polls is not ready"
sleep 4
kill -USR1 "$(lab pid vrnicd)"
wait $victim || fail "the program on the failed device does not end"
cat "$LAB_DIR/victim"
grep -q 'exit 1' "$LAB_DIR/victim" || fail "the program on the failed device did not see an error"
wait $poller || fail "the program that only polls does not end"
cat "$LAB_DIR/poller"
grep -q 'poller exit 0' "$LAB_DIR/poller" || fail "not everything was flushed"
kill -0 "$(lab pid vrnicd)" || fail "vrnicd died of a panic in one engine"
within 20 on a grep -q DEVICE_FATAL /tmp/events || fail "no device-fatal event"
on a pkill -x ibv_asyncwatch || true
wait $watch

active a
on -t 60 a vrnic-stress --device "$DEV" --seconds 3
enough b 18700
wait $bystander || fail "the other VM was disturbed"
