# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `rdma statistic qp` counts separately for a selected queue pair, or for each process. Nothing is counted twice or
# lost, not even for destroyed queue pairs.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=120
. "$LAB_LIB"

link=$DEV/1
# of NAME: prints the sum of the counter over all queue pairs with separate counters.
of() {
	on a rdma -j statistic qp show link "$link" | python3 -c "
import json, sys
text = sys.stdin.read()
print(sum(one.get('$1', 0) for one in (json.loads(text) if text.strip() else []) if one))"
}
# counters: prints the number of counters.
counters() { on a rdma statistic qp show link "$link" | grep -c cntn || true; }
# total NAME: prints the port's counter, including those of queue pairs. device NAME: prints it as the device tells the
# host. same NAME: checks that both agree.
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
	within 40 on b sh -c "ss -Hltn sport = :18770 | grep -q ." || fail "no server waits for a transfer"
	on -t 100 a ib_write_bw -d "$DEV" -x "$GID_INDEX" -F -D 1 --run_infinitely -p 18770 "$IP_b" >/dev/null 2>&1 &
	jobs+=($!)
	within 40 writing || fail "no data is written"
}
writing() { [ "$(device rdma_write_requests)" -gt "$written" ]; }
# The server ends when its client does.
finish() {
	for vm in a b; do
		on $vm pkill -x ib_write_bw || true
	done
	wait "${jobs[@]}" || true
}

# Counts a selected queue pair.
are 0 || fail "there are counters before any is bound"
transfer
qpn=$(on a rdma -j resource show qp link "$link" type RC | python3 -c "import json, sys; print(json.load(sys.stdin)[0]['lqpn'])")
on a rdma statistic qp bind link "$link" lqpn "$qpn" || fail "no counter was bound to queue pair $qpn"
are 1 || fail "there is no counter"
within 40 more rdma_write_requests 0 || fail "the queue pair does not count its writes"
! on a rdma statistic qp bind link "$link" lqpn "$qpn" 2>/dev/null || fail "a second counter was bound to a queue pair"
number=$(on a rdma statistic qp show link "$link" | grep -o 'cntn [0-9]*' | cut -d' ' -f2)
on a rdma statistic qp unbind link "$link" cntn "$number" lqpn "$qpn" ||
	fail "the counter is still bound to the queue pair"
are 0 || fail "an unbound counter still exists"
# The queue pair is destroyed while it has a counter.
on a rdma statistic qp bind link "$link" lqpn "$qpn"
finish
within 40 are 0 || fail "the counter of a destroyed queue pair still exists"
within 40 same rdma_write_requests || fail "writes were counted twice or lost: $(total rdma_write_requests), not $(device rdma_write_requests)"

# One counter for each process, and one for each type of queue pair.
on a rdma statistic qp set link "$link" auto type,pid on
transfer
are 1 || fail "there are $(counters) counters of one process"
within 40 more rdma_write_requests 0 || fail "the process does not count its writes"
finish
within 40 are 0 || fail "the counter of an ended process still exists"
on a rdma statistic qp set link "$link" auto off
for counter in rdma_write_requests tx_bytes rx_bytes; do
	within 40 same $counter || fail "$counter: $(total $counter), not $(device $counter)"
done
