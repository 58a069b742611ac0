# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnicd is killed under traffic, by SIGKILL or by a fault. QEMU and the VMs survive, programs get errors and the
# device-fatal event, everything that programs and the kernel posted is flushed, and the driver unbinds cleanly.
# lab: fabric=roce
# lab: fabric=local
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
# lab: fresh
# lab: allow-leaks
# lab: vrnicd faults = true
. "$LAB_LIB"

on -t 120 a sh -c "ibv_asyncwatch -d $DEV > /tmp/events 2>&1 & echo; sleep 100" &
watch=$!
on -t 90 b sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --server --seconds $((60 * LAB_SLOWNESS)); echo server exit \$?" > "$LAB_DIR/server" &
server=$!
on -t 90 a sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --client $IP_b --seconds $((60 * LAB_SLOWNESS)) --patience 20; echo client exit \$?" > "$LAB_DIR/client" &
client=$!
on -t 150 a sh -c "vrnic-verbs-check --device $DEV --gid $GID_INDEX --outlive; echo poller exit \$?" > "$LAB_DIR/poller" &
poller=$!
within 60 grep -sq 'kill the device' "$LAB_DIR/poller" || fail "the program that polls is not ready"
# Kernel users that drain when the device goes. One of them and the connection manager have receives posted.
on a modprobe vrnic-drain
on -t 80 a modprobe vrnic-shared
outstanding=$(on a rdma resource show qp type GSI -dd | grep -o 'rq_outstanding [0-9]*' | cut -d' ' -f2)
[ "$outstanding" -gt 0 ] || fail "the kernel posted no receives"
sleep 4
daemon=$(lab pid vrnicd)
# vrnicctl gets no answer from a daemon that has ended.
if [ "$FABRIC" = local ]; then kill -9 "$daemon"; else vrnicctl fault add -d a daemon-killed || true; fi
gone() { ! readlink "/proc/$daemon/exe" >/dev/null; }
within 10 gone || fail "vrnicd is still running"
wait $client || fail "the client does not end"
wait $server || fail "the server does not end"
wait $poller || fail "the program that only polls does not end"
cat "$LAB_DIR/client" "$LAB_DIR/server" "$LAB_DIR/poller"
grep -q 'poller exit 0' "$LAB_DIR/poller" || fail "not everything was flushed"
grep -q 'client exit 1' "$LAB_DIR/client" || fail "the client did not see an error"
for vm in a b; do
	kill -0 "$(lab pid qemu-$vm)" || fail "QEMU $vm died with vrnicd"
	on $vm true || fail "VM $vm does not answer"
done
within 20 on a grep -qi 'fatal' /tmp/events || fail "no device-fatal event"
kill $watch || true
# The driver gives up a device that never comes back, and can be unbound.
within 120 on a sh -c 'dmesg | grep -q "giving up after 5 restarts"' || fail "the driver never gives up"
virtio=$(bound a)
driver a unbind "$virtio" || fail "the driver does not unbind"
on a dmesg | grep -o "drained: .*" | grep -F "drained: 16 receives flushed, 16 of them before, 0 others" ||
	fail "the kernel user got no completions for its receives: $(on a dmesg | grep drained)"
on a dmesg | found "shared: drained, 2 of 2 told of the last receive" ||
	fail "the kernel user of the SRQ got no last-WQE event: $(on a dmesg | grep shared:)"
on a true
