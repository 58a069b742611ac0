# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `rdma statistic qp` counts separately for a chosen queue pair, or for each process. Nothing is counted twice or
# lost, not even for queue pairs that are gone.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=120
. "$LAB_LIB"

link=$DEV/1
# of NAME: the sum of the counter over all queue pairs that are counted by themselves.
of() {
	on a rdma -j statistic qp show link "$link" | python3 -c "
import json, sys
text = sys.stdin.read()
print(sum(one.get('$1', 0) for one in (json.loads(text) if text.strip() else []) if one))"
}
# counters: how many there are.
counters() { on a rdma statistic qp show link "$link" | grep -c cntn || true; }
# total NAME: what the port has, those of queue pairs included; and the same as the device tells the host.
total() { on a rdma -j statistic show link "$link" | python3 -c "import json, sys; print(json.load(sys.stdin)[0]['$1'])"; }
device() { vrnicctl --json counters -a -d a | python3 -c "
import json, sys
print(next(one['value'] for one in json.load(sys.stdin) if one['counter'] == '$1'))"; }
same() { [ "$(total "$1")" = "$(device "$1")" ]; }
more() { [ "$(of "$1")" -gt "$2" ]; }
are() { [ "$(counters)" = "$1" ]; }

transfer() {
	written=$(device rdma_write_requests)
	on -t 100 b ib_write_bw -d "$DEV" -x "$GID_INDEX" -F -D 1 --run_infinitely -p 18770 >/dev/null 2>&1 &
	jobs=($!)
	within 40 on b sh -c "ss -Hltn sport = :18770 | grep -q ." || fail "nobody waits for a transfer"
	on -t 100 a ib_write_bw -d "$DEV" -x "$GID_INDEX" -F -D 1 --run_infinitely -p 18770 "$IP_b" >/dev/null 2>&1 &
	jobs+=($!)
	within 40 writing || fail "nothing is written"
}
writing() { [ "$(device rdma_write_requests)" -gt "$written" ]; }
# The server ends by itself when its client does.
finish() {
	for vm in a b; do
		on $vm pkill -x ib_write_bw || true
	done
	wait "${jobs[@]}" || true
}

# One that is chosen.
are 0 || fail "there are counters already"
transfer
qpn=$(on a rdma -j resource show qp link "$link" type RC | python3 -c "import json, sys; print(json.load(sys.stdin)[0]['lqpn'])")
on a rdma statistic qp bind link "$link" lqpn "$qpn" || fail "queue pair $qpn gets no counter"
are 1 || fail "there is no counter"
within 40 more rdma_write_requests 0 || fail "the queue pair does not count its writes"
! on a rdma statistic qp bind link "$link" lqpn "$qpn" 2>/dev/null || fail "a queue pair gets a second counter"
number=$(on a rdma statistic qp show link "$link" | grep -o 'cntn [0-9]*' | cut -d' ' -f2)
on a rdma statistic qp unbind link "$link" cntn "$number" lqpn "$qpn" || fail "the queue pair keeps its counter"
are 0 || fail "a counter that nobody has is left"
# It is destroyed while it has one.
on a rdma statistic qp bind link "$link" lqpn "$qpn"
finish
within 40 are 0 || fail "the counter of a queue pair that is gone is left"
within 40 same rdma_write_requests || fail "writes were counted twice or lost: $(total rdma_write_requests), not $(device rdma_write_requests)"

# One of each process, and of each kind of queue pair.
on a rdma statistic qp set link "$link" auto type,pid on
transfer
are 1 || fail "there are $(counters) counters of one process"
within 40 more rdma_write_requests 0 || fail "the process does not count its writes"
finish
within 40 are 0 || fail "the counter of a process that is gone is left"
on a rdma statistic qp set link "$link" auto off
for counter in rdma_write_requests tx_bytes rx_bytes; do
	within 40 same $counter || fail "$counter: $(total $counter), not $(device $counter)"
done
