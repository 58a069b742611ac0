# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The module is unloaded under traffic and loaded again, a hundred times. After that, the RNIC works and nothing has
# leaked.
# lab: debug-kernel
# lab: timeout=900
# lab: fresh
. "$LAB_LIB"

# Traffic while the device exists. It ends with an error whenever the device is removed.
on -t 890 a sh -c "until [ -e /tmp/enough ]; do
	vrnic-stress --device $DEV --seconds 600 --patience 5 >/tmp/stress 2>&1 || sleep 0.1
done" &
traffic=$!
progress() { on a cat "/sys/class/infiniband/$DEV/ports/1/hw_counters/completions" 2>/dev/null || echo 0; }
moving() { [ "$(progress)" -gt 0 ]; }
for round in $(seq 100); do
	active a
	within 60 moving || fail "no traffic in round $round"
	on -t 60 a rmmod vrnic
	on -t 60 a modprobe vrnic
done
active a
on a touch /tmp/enough
on a pkill vrnic-stress || true
wait $traffic
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 3
