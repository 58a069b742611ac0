# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A wire loses one frame in thirteen, repeats some and delivers some late, in both directions. Still nothing is lost
# or wrong, and no queue pair fails: the test checks every byte and completion of random traffic.
# lab: fabric=roce
# lab: timeout=300
# lab: vrnicd-port impairment = { seed = 11, loss = 0.08, duplicate = 0.02, reorder = 0.05, reorder_delay_us = 300 }
. "$LAB_LIB"

on -t 250 b vrnic-stress --device "$DEV" --gid "$GID_INDEX" --server --seconds 10 --qps 6 --max-size 131072 --patience 100 &
server=$!
on -t 250 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --client "$IP_b" --seconds 10 --qps 6 --max-size 131072 --patience 100
wait $server || fail "the server of the stress test failed"

# The wire was as bad as it should be, at both ends.
for vm in a b; do
	vrnicctl counters -a -d $vm >"$LAB_DIR/counters"
	cat "$LAB_DIR/counters"
	for counter in retransmitted_pkts duplicate_request out_of_sequence packet_seq_err; do
		grep -Eq "^$vm +$counter +[1-9]" "$LAB_DIR/counters" || fail "$vm: no $counter"
	done
	for counter in retry_exceeded_err completion_errors; do
		grep -Eq "^$vm +$counter +0\$" "$LAB_DIR/counters" || fail "$vm: $counter"
	done
done
