# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The driver's tracepoints show commands with their errors, events, and doorbells.
# lab: fabric=local
# lab: timeout=180
# lab: needs CONFIG_TRACING=y
. "$LAB_LIB"

tracing=/sys/kernel/tracing
on a sh -c "mountpoint -q $tracing || mount -t tracefs none $tracing"
on a test -d $tracing/events/vrnic || fail "the driver has no tracepoints"

# traced PATTERN COMMAND...: checks that what the command causes in VM a is traced.
traced() {
	local pattern=$1
	shift
	on a sh -c "echo > $tracing/trace; echo 1 > $tracing/events/vrnic/enable"
	"$@" >/dev/null 2>&1 || true
	within 20 on a sh -c "grep -qE '$pattern' $tracing/trace" || fail "not traced: $pattern: $(on a tail -n 20 $tracing/trace)"
	on a sh -c "grep -E '$pattern' $tracing/trace | tail -n 1; echo 0 > $tracing/events/vrnic/enable"
}

traced 'vrnic_command: virtio[0-9]+ code=0x[0-9a-f]+ error=0 ns=[1-9][0-9]*$' on a ibv_devinfo -d "$DEV"
vrnicctl fault add -d a command-fails code=create-cq status=busy >/dev/null
traced 'vrnic_command: virtio[0-9]+ code=0x[0-9a-f]+ error=-16 ns=' on a ibv_rc_pingpong -d "$DEV" -g "$GID_INDEX"
vrnicctl fault clear >/dev/null
# IBV_EVENT_PKEY_CHANGE of port 1.
traced 'vrnic_event: virtio[0-9]+ type=12 number=1$' vrnicctl fault add -d a event-pkey-change
# The kernel's connection manager sends datagrams and gets their completions.
connects() { on -t 60 a sh -c "rping -s -a $IP_a -C 2 & sleep 1; rping -c -a $IP_a -C 2; wait"; }
traced 'vrnic_completion_event: virtio[0-9]+ vector=[0-9]+ cqn=[0-9]+$' connects
traced 'vrnic_doorbell: virtio[0-9]+ slot=[0-9]+ wakes=[01]$' connects

# Nothing is traced unless tracing is enabled.
on a sh -c "echo > $tracing/trace"
on a ibv_devinfo -d "$DEV" >/dev/null
on a sh -c "! grep -q vrnic_ $tracing/trace" || fail "traced although tracing is off"
