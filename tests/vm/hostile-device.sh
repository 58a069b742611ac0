# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A device that lies in its replies, answers late, twice or never, raises events without a cause and scribbles over the
# kernel's rings cannot do harm. The driver can always be unbound, programs and kernel modules end, and the kernel
# reports no errors. HOSTILE_SECONDS=3600 runs the test longer. The seed is in the directive.
# lab: fabric=local
# lab: timeout=600
# Linux's method that opens a device for a process leaks the process when the driver or the control group refuses it
# (uverbs_std_types_device.c, UVERBS_METHOD_GET_CONTEXT, frees the context without rdma_restrack_put()).
# lab: allow-kernel-leak dup_task_struct|copy_signal|prepare_creds|alloc_task_exec_state
# lab: vrnicd test_hostile = { devices = ["a"], seed = 14 }
. "$LAB_LIB"

virtio=$(bound a)
is_bound() { on a test -e "/sys/bus/virtio/drivers/vrnic/$virtio"; }

unbind() {
	! is_bound || driver a unbind "$virtio" || fail "round $rounds: the driver is still bound"
	on a test ! -e "/sys/class/infiniband/$DEV" || fail "round $rounds: the RDMA device outlives its driver"
}

# A device with inconsistent properties is refused.
bind() { driver a bind "$virtio" 2>/dev/null || ! is_bound; }

# Whatever happens to these programs, they must end, at the latest when their device is gone. The fourth gives new queue
# pairs counter sets. The one with XRC queues has no peer, so it ends as soon as it has created them.
cat > "$LAB_DIR/users" <<'USERS'
for command in \
	"ibv_devinfo -v" \
	"rdma resource show" \
	"rdma statistic show" \
	"rdma statistic qp set link $1/1 auto type on" \
	"rdma resource show qp -dd" \
	"vrnic-stress --device $1 --seconds 2" \
	"vrnic-verbs-check --device $1 --gid $2" \
	"ibv_xsrq_pingpong -d $1 -g $2 localhost" \
	"modprobe vrnic-fast patience=1" \
	"modprobe vrnic-integrity patience=1" \
	"modprobe vrnic-shared patience=1" \
	"modprobe vrnic-verbs" \
	"modprobe vrnic-drain"; do
	(
		timeout -s KILL 30 $command >/dev/null 2>&1
		echo "$? $command" >>/tmp/ended
	) &
done
wait
USERS
users=$(cat "$LAB_DIR/users")

kill -USR1 "$(lab pid vrnicd)"
rounds=0
refused=0
end=$((SECONDS + ${HOSTILE_SECONDS:-60}))
while [ $SECONDS -lt $end ]; do
	rounds=$((rounds + 1))
	unbind
	bind
	is_bound || refused=$((refused + 1))
	on -t 200 a sh -c "rm -f /tmp/ended; sh -c '$users' users $DEV $GID_INDEX >/dev/null 2>&1 & sleep 4" ||
		fail "round $rounds: the programs do not start"
	unbind
	within 100 on a sh -c 'test "$(wc -l < /tmp/ended)" = 13' ||
		fail "round $rounds: not all programs ended: $(on a sh -c 'cat /tmp/ended; ps ax | grep " D"')"
	on a sh -c 'for module in fast integrity shared verbs drain; do modprobe -r vrnic-$module; done' ||
		fail "round $rounds: a module is still loaded"
done
echo "$rounds rounds; the driver refused the device at once $refused times"
on -t 120 a modprobe -r vrnic || fail "the driver cannot be unloaded"
on -t 60 b vrnic-stress --device "$DEV" --seconds 2 || fail "the other VM was disturbed"

# An honest device works, and nothing was left behind.
kill -USR1 "$(lab pid vrnicd)"
on -t 60 a modprobe vrnic
active a
on -t 60 a vrnic-stress --device "$DEV" --seconds 2
