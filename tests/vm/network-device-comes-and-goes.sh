# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The network device that shares the port goes away and comes back: port and GIDs follow it, nothing waits for anything.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=240
# lab: fresh
. "$LAB_LIB"

netdev=$(on a sh -c 'basename $(readlink -f /sys/class/net/'"$NETDEV"'/device)')
gids() { on a sh -c 'for i in /sys/class/infiniband/'"$DEV"'/ports/1/gids/*; do cat $i; done 2>/dev/null | grep -vc "^0000:0000:0000:0000:0000:0000:0000:0000$"; true'; }
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

on a ip link set "$NETDEV" down
await "the port stays up without a link" down
on a ip link set "$NETDEV" up
await "the port stays down with a link" up

for round in 1 2; do
	on -t 60 a sh -c "echo $netdev > /sys/bus/virtio/drivers/virtio_net/unbind"
	await "the port stays up without a network device" down
	await "GIDs stay without a network device" none
	on a ibv_devinfo -d "$DEV" >/dev/null
	on a sh -c "echo $netdev > /sys/bus/virtio/drivers/virtio_net/bind"
	on a sh -c "ip link set $NETDEV up; ip addr add $IP_a/24 dev $NETDEV"
	await "the port stays down with a network device" up
	await "there are no GIDs with a network device" some
done
on -t 60 a sh -c "vrnic-stress --device $DEV --batches 3"
