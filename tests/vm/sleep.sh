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
	on -t 60 a sh -c "timeout 50 ibv_asyncwatch -d $DEV > /tmp/events 2>&1; true" &
	watch=$!
	port=$((port + 1))
	on -t 100 b sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --port $port --server --seconds $((60 * LAB_SLOWNESS)); true" &
	server=$!
	on -t 100 a sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --port $port --client $IP_b --seconds $((60 * LAB_SLOWNESS)); echo exit \$?" >"$LAB_DIR/victim" &
	victim=$!
	rm -f "$LAB_DIR/program"
	on -t 200 a sh -c "RDMAV_ALLOW_DISASSOC_DESTROY=1 vrnic-verbs-check --device $DEV --gid $GID_INDEX --recover import zero-length extended-interface-all; echo program exit \$?" >"$LAB_DIR/program" &
	program=$!
	on a modprobe vrnic-drain
	within 60 grep -sq 'kill the device' "$LAB_DIR/program" || fail "$state: the program is not ready: $(cat "$LAB_DIR/program")"
	within 20 on a grep -q 'async event FD' /tmp/events || fail "$state: ibv_asyncwatch does not start"
	connected a $port
	suspend "${state%-*}" "${state#*-}"
	wait $victim || fail "$state: the program does not end"
	grep -q 'exit 1' "$LAB_DIR/victim" || fail "$state: the program did not see an error: $(cat "$LAB_DIR/victim")"
	wait $server || fail "$state: the peer hangs"
	wait $program || fail "$state: the program that waits does not end: $(cat "$LAB_DIR/program")"
	grep -q 'program exit 0' "$LAB_DIR/program" || fail "$state: the program could not go on: $(cat "$LAB_DIR/program")"
	grep -q 'the device is back' "$LAB_DIR/program" || fail "$state: the program did not notice"
	within 20 on a grep -q DEVICE_FATAL /tmp/events || fail "$state: no device-fatal event"
	on a pkill -x ibv_asyncwatch || true
	wait $watch
	on a dmesg | tail -n 60 | found "drained: 16 receives flushed, .* 0 others" || fail "$state: the kernel's receives were not flushed"
	on a modprobe -r vrnic-drain
	active a
	on -t 60 a vrnic-stress --device "$DEV" --seconds 2
	pair b a $((port + 20)) "vrnic-stress --device $DEV --gid $GID_INDEX --port $((port + 20)) --server --seconds 2" \
		"vrnic-stress --device $DEV --gid $GID_INDEX --port $((port + 20)) --client $IP_b --seconds 2"
done
enough b 18700
wait $bystander || fail "the other VM noticed"
