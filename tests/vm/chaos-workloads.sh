# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Workloads of `vrnic-lab chaos` beyond those that tests/vm/chaos.sh uses: each works without a fault. When its twelfth
# packet is lost, each recovers, except udaddy, which has only datagrams; rdma-client has fewer packets. It boots a lab
# of its own.
# lab: crowd
# lab: needs CONFIG_NVME_TARGET_RDMA=m
# lab: timeout=900
# lab: long
. "$LAB_LIB"

out=$LAB_DIR/chaos
workloads="rdma-client ucmatose udaddy rstream nvme nfs iser srp"
"$LAB_BIN" --fabric "$FABRIC" chaos --out "$out" --on client --fail-on crash,leak,wrong-data --fault 'drop nth=12' $workloads || fail "the run failed"
python3 - "$out/report.json" $workloads <<'EOF2'
import json, sys
cases = json.load(open(sys.argv[1]))
def verdict(case):
    # On the debug kernel, Linux's iSER target causes a report of its own; see tests/vm/iser.sh.
    own = case["profile"] == "iser" and case["verdict"] == "kernel-report" and "check_sync" in case["kernel"]
    damaged = case["client"] != {"exited": 0} or case["leak"] or case["wrong_data"] or case["lost_device"]
    return "recovered" if own and not damaged else case["verdict"]
found = {(case["profile"], case["fault"] is not None): case for case in cases}
for workload in sys.argv[2:]:
    without, lost = [verdict(found[workload, faulty]) for faulty in (False, True)]
    fired = found[workload, True]["fired"]
    print(f"{workload}: {without}, with a lost packet {lost}, fired {fired}")
    allowed = ("unaffected", "recovered")
    if workload == "udaddy":
        # Lost datagrams are not sent again.
        allowed += ("hang", "reported")
    if workload == "rdma-client":
        allowed += ("not-reached",)
    elif fired != 1:
        sys.exit(f"{workload}: the fault fired {fired} times instead of once")
    if without not in ("unaffected", "recovered") or lost not in allowed:
        sys.exit(f"{workload} is {without} without a fault, and {lost} when a packet is lost")
EOF2
