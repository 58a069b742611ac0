# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# rdma-core's own tests of flows and of raw packet queue pairs, which the pinned lists have as skipped because their labs
# have no network device at the switch. Their frames have a source address of their own, which the port allows here.
# lab: timeout=300
# lab: fabric=roce
# lab: vrnicd-port addresses = 1
. "$LAB_LIB"

for test in flow.FlowTest.test_{eth,ipv4,ipv6,tcp,udp}_spec_flow_traffic \
	qp.QPTest.test_create_raw_qp_{no_attr,with_attr,ex_no_attr,ex_with_attr} qp.QPTest.test_query_raw_qp; do
	on -t 60 a python3 /vrnic/tests/pyverbs/inventory.py --device "$DEV" --test "tests.test_$test" >"$LAB_DIR/outcome" ||
		fail "$test"
	grep -q "^tests.test_$test	ok$" "$LAB_DIR/outcome" || fail "$test: $(cat "$LAB_DIR/outcome")"
done
