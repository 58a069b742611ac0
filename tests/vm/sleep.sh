# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A VM suspends under traffic and wakes up: first up to the point at which all devices sleep, then up to the last step
# before the firmware would stop the machine (/sys/power/pm_test), then to idle for real. Each time, programs and kernel
# users get the device-fatal event and everything that they posted, a program that waits can go on with the device when
# it is back, new connections work, and the other VM is not affected.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=600
# lab: sleeps
# lab: needs CONFIG_PM_SLEEP_DEBUG=y
. "$LAB_LIB"

slept() { on a cat /sys/power/suspend_stats/success; }
woken() { [ "$(slept)" -gt "$1" ]; }

# suspend STATE LEVEL: sleeps. Returns when VM a is awake.
suspend() {
	local before
	before=$(slept)
	on a sh -c "echo $2 >/sys/power/pm_test; echo 1 >/sys/module/suspend/parameters/pm_test_delay"
	# The agent sleeps too, so a process in the background suspends the machine.
	on a sh -c "setsid -f sh -c 'sleep 1; echo $1 >/sys/power/state' >/tmp/suspend 2>&1"
	if [ "$2" = none ]; then
		# The console says when the machine begins to sleep, and nothing when it sleeps. Waking it before also ends sleep.
		within 60 grep -q 'PM: suspend entry (s2idle)' "$(lab console a)" || fail "the VM does not begin to sleep"
		sleep $((5 * LAB_SLOWNESS))
		lab qmp a '{"execute": "system_powerdown"}' >/dev/null
	fi
	within 90 woken "$before" || fail "$1, $2: the VM did not sleep: $(on a cat /tmp/suspend; on a dmesg | tail -n 20)"
}

# Wakes the VM up.
on a modprobe button
busy b 18700 &
bystander=$!
port=18900
for state in mem-devices mem-core freeze-none; do
	port=$((port + 1))
	on -t 100 b sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --port $port --server --seconds $((60 * LAB_SLOWNESS)); true" &
	server=$!
	before_failure $state "vrnic-stress --device $DEV --gid $GID_INDEX --port $port --client $IP_b --seconds $((60 * LAB_SLOWNESS))"
	connected a $port
	suspend "${state%-*}" "${state#*-}"
	after_failure $state
	wait $server || fail "$state: the peer hangs"
	active a
	! on a dmesg | found "should not be sleeping" || fail "$state: the driver adds devices to one that sleeps"
	on -t 60 a vrnic-stress --device "$DEV" --seconds 2
	pair b a $((port + 20)) "vrnic-stress --device $DEV --gid $GID_INDEX --port $((port + 20)) --server --seconds 2" \
		"vrnic-stress --device $DEV --gid $GID_INDEX --port $((port + 20)) --client $IP_b --seconds 2"
done
enough b 18700
wait $bystander || fail "the other VM noticed"
