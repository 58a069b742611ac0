# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Queue pairs for raw packets beside the network device of the same port: flows decide who gets a frame, the switch
# drops forged ones, the device fills in and checks checksums and divides TCP packets, receive scaling spreads packets
# over work queues, which fail like queue pairs, flows look into tunnels, tag frames and drop them, and perftest's
# programs for Ethernet run between two VMs. Without the right to send raw packets there are none.
# lab: timeout=300
# lab: fabric=roce
. "$LAB_LIB"

mac_a=$(on a cat "/sys/class/net/$NETDEV/address")
mac_b=$(on b cat "/sys/class/net/$NETDEV/address")
on a ping -c 1 -W 5 "$IP_b" >/dev/null || fail "no IPv4"

forged() { vrnicctl --json switch | python3 -c "
import json, sys
print(sum(dict(port['counters'])['rx_addresses'] for port in json.load(sys.stdin)))"; }

before=$(forged)
on -t 120 b python3 /vrnic/tests/pyverbs/raw.py receive "$DEV" "$NETDEV" >"$LAB_DIR/receiver" &
receiver=$!
within 60 grep -q ready "$LAB_DIR/receiver" || fail "the receiver does not begin"
# vrnicctl shows the flows of the receiver, and the queue pair to which they lead.
vrnicctl flows
vrnicctl --json flows >"$LAB_DIR/flows"
vrnicctl --json qps -d b >"$LAB_DIR/qps"
python3 - "$LAB_DIR" "$mac_b" <<'PY' || fail "vrnicctl does not show the flows"
import json, pathlib, sys
read = lambda name: json.loads((pathlib.Path(sys.argv[1]) / name).read_text())
[raw] = [qp["qpn"] for qp in read("qps") if qp["kind"] == "RAW"]
flows = read("flows")
assert all((flow["device"], flow["qpn"], flow["kind"]) == ("b", raw, "normal") for flow in flows), flows
fields = sorted(sorted(flow["fields"]) for flow in flows)
expected = [(sys.argv[2], "0x88b5"), ("ff:ff:ff:ff:ff:ff", "0x88b5")]
expected += [("03:00:00:00:00:09", ip) for ip in ("0x0800", "0x86dd")]
assert fields == sorted([["destination_mac", to], ["ether_type", of]] for to, of in expected), fields
PY
on -t 60 a python3 /vrnic/tests/pyverbs/raw.py send "$DEV" "$NETDEV" "$mac_b" || fail "the sender failed"
wait $receiver || fail "the receiver got something else"
[ $(($(forged) - before)) = 2 ] || fail "2 forged frames, but $(forged) are counted, and $before before"
[ "$(vrnicctl --json flows)" = "[]" ] || fail "flows without a queue pair: $(vrnicctl flows)"
on a ping -c 1 -W 5 "$IP_b" >/dev/null || fail "no IPv4 after the flows"

# ethernet PROGRAM OPTION...: runs a program of perftest on both VMs. The server does not say when it is ready, and frames
# that come before are lost, so on a busy machine the client waits longer the next time.
ethernet() {
	local server pause
	for pause in 3 10 30; do
		on -t 60 b timeout 55 "$1" -d "$DEV" --server -E "$mac_a" -B "$mac_b" "${@:2}" >"$LAB_DIR/server" 2>&1 &
		server=$!
		sleep $pause
		if on -t 60 a timeout $((50 - pause)) "$1" -d "$DEV" --client -E "$mac_b" -B "$mac_a" "${@:2}" \
			>"$LAB_DIR/client" 2>&1 && wait $server; then
			return
		fi
		wait $server || true
	done
	fail "$1 ${*:2}: $(cat "$LAB_DIR/client" "$LAB_DIR/server")"
}
ethernet raw_ethernet_lat -n 100 -s 64
ethernet raw_ethernet_lat -n 100 -s 1024
ethernet raw_ethernet_bw -n 1000 -s 1024
# One VM creates equal flows, of which the device has at most 64.
on -t 60 b timeout 55 raw_ethernet_fs_rate -d "$DEV" --server -E "$mac_a" -B "$mac_b" -n 50 || fail "raw_ethernet_fs_rate"

rm "$LAB_DIR/receiver"
on -t 120 b python3 /vrnic/tests/pyverbs/raw.py receive-kinds "$DEV" "$NETDEV" >"$LAB_DIR/receiver" &
receiver=$!
within 60 grep -q ready "$LAB_DIR/receiver" || fail "the receiver of each kind of flow does not begin"
on -t 60 a python3 /vrnic/tests/pyverbs/raw.py send-kinds "$DEV" "$NETDEV" "$mac_b" || fail "the sender failed"
wait $receiver || fail "the receiver with each kind of flow got something else"

rm "$LAB_DIR/receiver"
on -t 120 b python3 /vrnic/tests/pyverbs/raw.py receive-scaled "$DEV" "$NETDEV" >"$LAB_DIR/receiver" &
receiver=$!
within 60 grep -q ready "$LAB_DIR/receiver" || fail "the receiver with several queues does not begin"
vrnicctl --json qps -d b >"$LAB_DIR/qps"
python3 - "$LAB_DIR" <<'PY' || fail "vrnicctl does not show the queues"
import json, pathlib, sys
kinds = sorted(qp["kind"] for qp in json.loads((pathlib.Path(sys.argv[1]) / "qps").read_text()))
assert [kind for kind in kinds if kind in ("RQ", "RSS")] == ["RQ"] * 4 + ["RSS"], kinds
PY
# A queue pair without states does not hide the others.
shown=$(on b rdma resource show qp)
[ "$(grep -c 'type RAW_PACKET' <<<"$shown")" = 1 ] && grep -q 'type GSI' <<<"$shown" ||
	fail "rdma does not show the queue pairs: $shown"
on -t 60 a python3 /vrnic/tests/pyverbs/raw.py send-scaled "$DEV" "$NETDEV" "$mac_b" || fail "the sender failed"
wait $receiver || fail "the receiver with several queues got something else"

rm "$LAB_DIR/receiver"
on -t 120 b python3 /vrnic/tests/pyverbs/raw.py receive-tunnels "$DEV" "$NETDEV" >"$LAB_DIR/receiver" &
receiver=$!
within 60 grep -q ready "$LAB_DIR/receiver" || fail "the receiver of what is in tunnels does not begin"
vrnicctl flows -d b
vrnicctl --json flows -d b >"$LAB_DIR/flows"
python3 - "$LAB_DIR" <<'PY' || fail "vrnicctl does not show tunnels and actions"
import json, pathlib, sys
flows = json.loads((pathlib.Path(sys.argv[1]) / "flows").read_text())
of = {flow["tag"]: dict(flow["fields"]) for flow in flows if not flow["drops"]}
assert of[0xabcdef]["vni"] == "0x000005" and of[0xabcdef]["inner_ether_type"] == "0x88bb", flows
assert of[7]["mpls_over_udp"] == "0x00064000/0xfffff000" and of[7]["inner_destination_port"] == "81", flows
assert of[5]["gre_key"] == "0x00000007" and of[5]["protocol"] == "47", flows
assert sorted(flow["tag"] for flow in flows if flow["drops"]) == [0, 3], flows
PY
on -t 60 a python3 /vrnic/tests/pyverbs/raw.py send-tunnels "$DEV" "$NETDEV" "$mac_b" || fail "the sender failed"
wait $receiver || fail "the receiver got something else from tunnels"

# Counters of flows to frames that a queue pair sends to itself.
on -t 60 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" flow-counters || fail "the counters"

# A queue that is in error, and one that the device fails.
on -t 60 a python3 /vrnic/tests/pyverbs/raw.py queue-in-error "$DEV" || fail "a queue in error"
on -t 120 a python3 /vrnic/tests/pyverbs/raw.py queue-that-fails "$DEV" >"$LAB_DIR/failing" &
failing=$!
within 60 grep -q queue "$LAB_DIR/failing" || fail "there is no queue"
vrnicctl fault add -d a qp-fatal "qp=$(sed -n 's/queue //p' "$LAB_DIR/failing")" >/dev/null
wait $failing || fail "the program is not told that its queue has failed"

! on -t 60 a setpriv --bounding-set=-net_raw --inh-caps=-net_raw --ambient-caps=-net_raw \
	python3 /vrnic/tests/pyverbs/raw.py send "$DEV" "$NETDEV" "$mac_b" >/dev/null 2>&1 ||
	fail "raw packets without the right to send them"
