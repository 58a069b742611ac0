# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A process killed by SIGKILL under traffic leaves nothing behind. Its peer gets an error, and others are not affected.
# lab: fabric=local
# lab: fabric=roce
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
. "$LAB_LIB"

busy a 18700 &
bystander=$!
for round in 1 2 3; do
	on -t 60 b sh -c "vrnic-stress --device $DEV --gid $GID_INDEX --port 1880$round --server --seconds 60 --qps 8; true" &
	server=$!
	on -t 60 a sh -c "
		vrnic-stress --device $DEV --gid $GID_INDEX --port 1880$round --client $IP_b --seconds 60 --qps 8 &
		pid=\$!
		while kill -0 \$pid && [ -z \"\$(ss -Htn state established dport = :1880$round)\" ]; do sleep 0.2; done
		sleep 3
		kill -0 \$pid || exit 1
		kill -9 \$pid
		wait \$pid
		true" || fail "round $round: the traffic did not start"
	wait $server || fail "round $round: the peer of the killed process hangs"
done
enough a 18700
wait $bystander || fail "an uninvolved process failed"
