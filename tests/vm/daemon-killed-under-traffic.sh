# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnicd killed by SIGKILL under traffic: QEMU and the VMs live on, programs get errors and the device-fatal event, and the driver unbinds cleanly.
# lab: timeout=240
# lab: fresh
# lab: allow-leaks
# The virtio core reads the status of a device that is gone, all ones, and takes it for a driver's fault.
# lab: allow-kernel-messages virtio_dev_remove
. "$LAB_LIB"

on -t 120 a sh -c "ibv_asyncwatch -d $DEV > /tmp/events 2>&1 & echo; sleep 100" &
watch=$!
on -t 90 b sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --server --seconds 60; echo server exit \$?" > "$LAB_DIR/server" &
server=$!
on -t 90 a sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --client $IP_b --seconds 60 --patience 20; echo client exit \$?" > "$LAB_DIR/client" &
client=$!
sleep 8
kill -9 "$(lab pid vrnicd)"
wait $client || fail "the client does not end"
wait $server || fail "the server does not end"
cat "$LAB_DIR/client" "$LAB_DIR/server"
grep -q 'client exit 1' "$LAB_DIR/client" || fail "the client did not see an error"
for vm in a b; do
	kill -0 "$(lab pid qemu-$vm)" || fail "QEMU $vm died with vrnicd"
	on $vm true || fail "VM $vm does not answer"
done
on a cat /tmp/events
on a grep -qi 'fatal' /tmp/events || fail "no device-fatal event"
kill $watch || true
virtio=$(on a sh -c 'ls -d /sys/bus/virtio/drivers/vrnic/virtio* | head -1 | xargs basename')
on -t 60 a sh -c "echo $virtio > /sys/bus/virtio/drivers/vrnic/unbind" || fail "the driver does not unbind"
on a true
