# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# If the device has no doorbell pages, the kernel rings doorbells by commands, and processes through the verb POST_SEND.
# For work queues in error, they ask for the error state once more.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=300
# lab: vrnicd-device doorbells = false
. "$LAB_LIB"

on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 5
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 5 --events --ud
perf a b ibv_rc_pingpong -n 100
perf a b ib_send_bw -s 65536 -n 100
on -t 60 b sh -c "rping -s -a $IP_b -p 18710 -C 5" &
server=$!
listening b 18710
on -t 60 a rping -c -a "$IP_b" -p 18710 -C 5 -V
wait $server || fail "the server of rping failed"

if [ "$FABRIC" = roce ]; then
	on -t 60 a python3 /vrnic/tests/pyverbs/raw.py queue-in-error "$DEV" || fail "a work queue in error"
fi
