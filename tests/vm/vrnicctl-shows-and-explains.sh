# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnicctl shows the queue pairs of running programs, and explains errors at both ends: bad keys, bounds, rights, RNR,
# lengths. The log filter changes while vrnicd runs.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=300
. "$LAB_LIB"

[ "$(stat -c %a "$VRNIC_CONTROL")" = 600 ] || fail "other users may connect to the control socket"
vrnicctl devices
for device in a b; do
	vrnicctl devices | found -E "^$device +up " || fail "device $device is not up"
done
vrnicctl gids -d a | found "${IP_a}" || fail "no GID with the address of VM a"
mtu=$(on a ibv_devinfo -d "$DEV" | sed -n 's/.*active_mtu:\s*\([0-9]*\).*/\1/p')
vrnicctl ports | found -E "^a +1 +active +$mtu " || fail "port of a, whose MTU is $mtu"
if vrnicctl qps -d nobody 2>/dev/null; then fail "a device that does not exist was accepted"; fi

# Running programs.
on -t 120 b vrnic-stress --device "$DEV" --gid "$GID_INDEX" --server --seconds $((15 + 10 * LAB_SLOWNESS)) --qps 4 &
server=$!
on -t 120 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --client "$IP_b" --seconds $((15 + 10 * LAB_SLOWNESS)) --qps 4 &
client=$!
# Each queue pair names its peer, which names it, has work posted and makes progress. Programs take time to start, so
# one successful look among many is enough.
look() {
	vrnicctl --json qps > "$LAB_DIR/qps"
	sleep 0.5
	vrnicctl --json qps > "$LAB_DIR/later"
	python3 - "$LAB_DIR/qps" "$LAB_DIR/later" <<'PY'
import json, sys
qps, later = (json.load(open(path)) for path in sys.argv[1:])
a = {qp["qpn"]: qp for qp in qps if qp["device"] == "a" and qp["kind"] == "RC" and qp["state"] == "RTS"}
b = {qp["qpn"]: qp for qp in qps if qp["device"] == "b" and qp["kind"] == "RC"}
assert len(a) >= 4, "the queue pairs of a program are not shown"
assert all(qp["peer_qpn"] in b and b[qp["peer_qpn"]]["peer_qpn"] == qpn for qpn, qp in a.items()), "peers do not name each other"
assert all(qp["sends_posted"] <= qp["send_entries"] and qp["receives_posted"] <= qp["receive_entries"] for qp in a.values()), "more work than entries"
assert any(qp["receives_posted"] for qp in a.values()), "no receives"
assert any(qp["device"] == "a" and a.get(qp["qpn"], qp)["send_psn"] != qp["send_psn"] for qp in later), "no PSN moved"
PY
}
code=0
within 15 look 2> "$LAB_DIR/why" || code=$?
vrnicctl qps
[ $code = 0 ] || fail "vrnicctl does not show the expected queue pairs: $(tail -n 1 "$LAB_DIR/why")"
# The guest's kernel reports the same about their objects as the device.
resource() { on a rdma -j resource show "$1" -dd > "$LAB_DIR/$1"; }
same_objects() {
	resource qp && resource cq && resource mr
	for what in qps cqs mrs; do
		vrnicctl --json $what -d a > "$LAB_DIR/$what"
	done
	python3 - "$LAB_DIR" <<'PY'
import json, pathlib, sys
read = lambda name: json.loads((pathlib.Path(sys.argv[1]) / name).read_text())
guest = {(qp["lqpn"], qp["drv_sq_entries"], qp["drv_rq_entries"]) for qp in read("qp")}
assert guest == {(qp["qpn"], qp["send_entries"], qp["receive_entries"]) for qp in read("qps")}, "queue pairs differ"
guest = {(cq["drv_cqn"], cq["drv_entries"], cq["drv_vector"]) for cq in read("cq")}
assert guest == {(cq["cqn"], cq["entries"], cq["vector"]) for cq in read("cqs")}, "completion queues differ"
regions = read("mr")
assert {int(mr["lkey"], 16): mr["mrlen"] for mr in regions} == {mr["key"]: mr["length"] for mr in read("mrs")}, "regions differ"
assert regions and all(mr["drv_pages"] << mr["drv_page_shift"] >= mr["mrlen"] for mr in regions), "regions without pages"
PY
}
within 15 same_objects 2>> "$LAB_DIR/differences" ||
	fail "the objects of the kernel and of the device differ: $(grep Error: "$LAB_DIR/differences" | sort | uniq -c)"
vrnicctl cqs -d a | found -E '^a +[0-9]+ .* ok$' || fail "no completion queue"
vrnicctl mrs -d b | found 'remote write' || fail "there is no memory region that a peer may write"
vrnicctl watch -i 0.5 -n 3 > "$LAB_DIR/watch"
cat "$LAB_DIR/watch"
grep -Eq 'tx_bytes +[0-9]{4,} /s' "$LAB_DIR/watch" || fail "the live view shows no traffic"
wait $client
wait $server
vrnicctl counters -d a | found -E '^a +completions +[1-9]' || fail "no completions were counted"

# Provoked errors.
old=$(vrnicctl log)
vrnicctl log debug | found -i debug || fail "the log filter was not changed"
provoke() {
	on -t 120 b vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --server &
	server=$!
	on -t 120 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --client "$IP_b" "$1"
	wait $server
	vrnicctl explain -d a -n 200 > "$LAB_DIR/a"
	vrnicctl explain -d b -n 200 > "$LAB_DIR/b"
}
explained() {
	grep -Eq "$2" "$LAB_DIR/$1" && return
	cat "$LAB_DIR/a" "$LAB_DIR/b"
	fail "vrnicctl explain of $1 does not show: $2"
}
provoke remote-key-unknown
explained b 'sent NAK: remote access error, to .* with PSN [0-9]+.*: no memory region has the remote key; key 0x[0-9a-f]+, [0-9]+ bytes at 0x[0-9a-f]+, PD [0-9]+, needs remote'
explained a 'received NAK: remote access error, PSN [0-9]+'
explained a 'QP [0-9]+ \(peer [0-9]+\): .* completed with IBV_WC_REM_ACCESS_ERR, wr_id 0x[0-9a-f]+, PSN [0-9]+: peer refused the access'
provoke remote-range-out-of-bounds
explained b 'remote access exceeds its memory region; key 0x'
provoke remote-key-without-permission
explained b 'lacks the access right; key 0x.*needs remote'
provoke rnr-retries-run-out
explained b 'sent RNR NAK.*: no receive is posted'
explained a 'completed with IBV_WC_RNR_RETRY_EXC_ERR, wr_id 0x[0-9a-f]+.*: peer posted no receive, and no retries are left'
provoke receive-too-short
explained b 'message is longer than the receive'
provoke local-key-bad
explained a 'completed with IBV_WC_LOC_PROT_ERR, wr_id .*: no memory region has the local key; key 0x'
provoke flush-both-queues
explained a 'completed with IBV_WC_WR_FLUSH_ERR.*queue pair is in the error state'
within 20 grep -q 'no memory region has the remote key; key 0x' "$(lab log)" ||
	fail "the log at level debug does not show the reason"
vrnicctl log "$old" >/dev/null
if vrnicctl log 'no such=filter=at all' 2>/dev/null; then fail "an invalid log filter was accepted"; fi
