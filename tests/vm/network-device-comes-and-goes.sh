# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The RNIC's network device goes down or is removed, and comes back. The port, the GIDs and the traffic follow it, and
# nothing hangs. The same holds for the RNIC's own link, which vrnicctl takes down.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=240
# lab: fresh
. "$LAB_LIB"

netdev=$(on a sh -c 'basename $(readlink -f /sys/class/net/'"$NETDEV"'/device)')
gids() { on a sh -c "cat /sys/class/infiniband/$DEV/ports/1/gids/* 2>/dev/null" | grep -vc '^0000:0000:0000:0000:0000:0000:0000:0000$' || true; }
state() { on a cat /sys/class/infiniband/"$DEV"/ports/1/state; }
# await WHAT COMMAND...: waits until the command succeeds.
await() {
	local what=$1
	shift
	within 40 "$@" || fail "$what"
}
down() { state | found DOWN; }
up() { state | found ACTIVE; }
none() { [ "$(gids)" = 0 ]; }
some() { [ "$(gids)" -ge 2 ]; }
# shown STATE PHYSICAL-STATE [NETDEV]: checks what `rdma link show` says about the port.
shown() { on a rdma link show "$DEV/1" | found "^link $DEV/1 state $1 physical_state $2${3:+ netdev $3} *\$"; }

# value COUNTER VM: prints a counter of the device.
value() {
	vrnicctl --json counters -a -d "$2" | python3 -c "
import json, sys
print(next(one['value'] for one in json.load(sys.stdin) if one['counter'] == '$1'))"
}
# more COUNTER VM THAN: checks that the counter of the device is larger.
more() { [ "$(value "$1" "$2")" -gt "$3" ]; }
# await_more WHAT COUNTER VM: waits until the counter of the device increases.
await_more() {
	local before
	before=$(value "$2" "$3")
	await "$1" more "$2" "$3" "$before"
}
# transfers TIMEOUT: both VMs write to each other continuously, with a local ACK timeout of TIMEOUT in the verbs'
# encoding.
transfers() {
	local options=(-d "$DEV" -x "$GID_INDEX" -F -b -s 4096 -D 1 --run_infinitely -u "$1" -p 18760)
	on -t 120 b ib_write_bw "${options[@]}" >"$LAB_DIR/b" 2>&1 &
	jobs=($!)
	within 40 on b sh -c "ss -Hltn sport = :18760 | grep -q ." || fail "no server waits for a transfer"
	on -t 120 a ib_write_bw "${options[@]}" "$IP_b" >"$LAB_DIR/a" 2>&1 &
	jobs+=($!)
	await_more "no data is written to a" rx_bytes a
	await_more "no data is written to b" rx_bytes b
}

# The events that programs in a receive. Each waits for its event, however late it is.
on -t 240 a sh -c "ibv_asyncwatch -d $DEV >/tmp/port-events" &
watch=$!
within 40 on a grep -sq 'async event FD' /tmp/port-events || fail "no program watches the device's events"
events() { on a cat /tmp/port-events | grep -c "$1" || true; }
# A late event of an earlier change does not announce a new one.
quiet() {
	local before
	before=$(events .)
	sleep 1
	[ "$(events .)" = "$before" ]
}
# note EVENT...: starts to watch for these events.
declare -A noted
note() {
	local event
	await "programs are told of events without end" quiet
	for event; do
		noted[$event]=$(events "$event")
	done
}
# told EVENT: checks whether a program has received the event since `note`.
told() { [ "$(events "$1")" -gt "${noted[$1]}" ]; }
await "the port and its network device are not shown as they are" shown ACTIVE LINK_UP "$NETDEV"

# The device learns of the largest frame size although the port's attributes are not queried.
device_mtu() { vrnicctl ports | found -E "^a +1 +active +$1 "; }
frame=$(on a cat "/sys/class/net/$NETDEV/mtu")
payload=$(vrnicctl ports | sed -nE 's/^a +1 +active +([0-9]+) .*/\1/p')
on a ip link set "$NETDEV" mtu 700
await "the device is not told of shorter frames" device_mtu 512
on a ip link set "$NETDEV" mtu "$frame"
await "the device is not told of longer frames" device_mtu "$payload"

# For 69 s, either end retries every 8.6 s.
transfers 21
note PORT_ERR PORT_ACTIVE
on a ip link set "$NETDEV" down
await "the port stays up without a link" down
for vm in a b; do
	await_more "$vm counts no missing acknowledgement" local_ack_timeout_err $vm
done
received=$(value rx_bytes a),$(value rx_bytes b)
await_more "a does not retransmit" local_ack_timeout_err a
[ "$(value rx_bytes a),$(value rx_bytes b)" = "$received" ] || fail "data passes through a port that is down"
on a ip link set "$NETDEV" up
await "the port stays down with a link" up
for vm in a b; do
	await_more "no data is written to $vm any more" rx_bytes $vm
done
for vm in a b; do
	on $vm pkill -x ib_write_bw || true
done
wait "${jobs[@]}" || true
await "no program is told that the port went down" told PORT_ERR
await "no program is told that the port is up again" told PORT_ACTIVE

# The retries last for half a second; then both ends get errors.
transfers 14
on a ip link set "$NETDEV" down
await "the port stays up without a link" down
for job in "${jobs[@]}"; do
	! wait "$job" || fail "a transfer continues without a link"
done
for vm in a b; do
	found 'status 12' <"$LAB_DIR/$vm" ||
		fail "$vm got no completion that its retries were exhausted: $(cat "$LAB_DIR/$vm")"
done
await "the port is not shown without a link" shown DOWN DISABLED "$NETDEV"
on a ip link set "$NETDEV" up
await "the port stays down with a link" up
await "the port is not shown with a link again" shown ACTIVE LINK_UP "$NETDEV"

# The RNIC's own link, while the network device is up.
note PORT_ERR
vrnicctl link a down
await "the port stays up without the RNIC's link" down
await "no program is told that the RNIC's link went down" told PORT_ERR
await "the port is not shown without the RNIC's link" shown DOWN DISABLED "$NETDEV"
vrnicctl devices | found -E '^a +up +down ' || fail "vrnicctl does not show the link"
note PORT_ACTIVE
vrnicctl link a up
await "the port stays down with the RNIC's link" up
await "no program is told that the RNIC's link is up again" told PORT_ACTIVE
if vrnicctl link nobody down; then fail "a device that does not exist has a link"; fi

for round in 1 2; do
	note GID_CHANGE
	on -t 60 a sh -c "echo $netdev > /sys/bus/virtio/drivers/virtio_net/unbind"
	await "the port stays up without a network device" down
	await "GIDs stay without a network device" none
	await "no program is told that GIDs went away" told GID_CHANGE
	await "the port is not shown without a network device" shown DOWN DISABLED
	on a ibv_devinfo -d "$DEV" >/dev/null
	on a sh -c "echo $netdev > /sys/bus/virtio/drivers/virtio_net/bind"
	on a sh -c "ip link set $NETDEV up; ip addr add $IP_a/24 dev $NETDEV"
	await "the port stays down with a network device" up
	await "the port is not shown with a network device" shown ACTIVE LINK_UP "$NETDEV"
	await "there are no GIDs with a network device" some
done
on -t 60 a sh -c "vrnic-stress --device $DEV --batches 3"
on a pkill -x ibv_asyncwatch
wait $watch || true

# Drivers that are bound later find the link as it is.
vrnicctl link a down
on -t 60 a rmmod vrnic
on -t 60 a modprobe vrnic
await "the link is up for another driver" down
vrnicctl link a up
await "the port stays down for another driver" up
