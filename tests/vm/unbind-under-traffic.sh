# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The driver is unbound under traffic, with open contexts. Programs get errors, everything that they posted is flushed,
# and the driver unbinds and can be bound again.
# lab: fabric=roce
# lab: fabric=local
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
# lab: fresh
. "$LAB_LIB"

virtio=$(bound a)
for round in 1 2; do
	rm -f "$LAB_DIR/poller"
	on -t 90 b sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --port 1890$round --server --seconds $((60 * LAB_SLOWNESS)); true" &
	server=$!
	on -t 90 a sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --port 1890$round --client $IP_b --seconds $((60 * LAB_SLOWNESS)) && exit 9; true" &
	client=$!
	on -t 90 a sh -c "vrnic-verbs-check --device $DEV --gid $GID_INDEX --outlive; echo poller exit \$?" > "$LAB_DIR/poller" &
	poller=$!
	within 60 grep -sq 'kill the device' "$LAB_DIR/poller" || fail "round $round: the program that polls is not ready"
	connected a 1890$round
	sleep 3
	driver a unbind "$virtio"
	on a sh -c "test ! -e /sys/class/infiniband/$DEV" || fail "the device is still there"
	wait $poller || fail "round $round: a program polls forever"
	grep -q 'poller exit 0' "$LAB_DIR/poller" || fail "round $round: not everything was flushed: $(cat "$LAB_DIR/poller")"
	wait $client || fail "round $round: traffic continued without a device"
	wait $server || fail "round $round: the peer hangs"
	driver a bind "$virtio"
	active a
	on -t 60 a vrnic-stress --device "$DEV" --seconds 2
done
