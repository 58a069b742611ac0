# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Workloads of `vrnic-lab chaos` beyond those that tests/vm/chaos.sh uses: each works without a fault. When its twelfth
# packet is lost, each recovers, except udaddy, which has only datagrams; rdma-client has fewer packets. Then the
# scenarios that come with vrnic. It boots labs of its own.
# lab: crowd
# lab: needs CONFIG_NVME_TARGET_RDMA=m
# lab: timeout=1500
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

# under WORKLOAD SCENARIO...: the workload gets as far as each scenario, no phase of which fails. Some of them the
# programs must survive, so that each phase ends as it should.
under() {
	local workload=$1
	shift
	"$LAB_BIN" --fabric "$FABRIC" chaos --out "$out" "$workload" "${@/#/--scenario=}" || fail "$workload: the run failed"
	python3 - "$out/report.json" $# "$(dirname "$LAB_LIB")/../vrnicctl/scenarios" <<'EOF2'
import json, sys, tomllib
cases = [case for case in json.load(open(sys.argv[1])) if case["fault"]]
survived = {"lost-ack", "cable-pulled", "slow-receiver", "slow-device", "rails/port-flap"}
for case in cases:
    scenario, workload, verdict = case["fault"]["fault"], case["profile"], case["verdict"]
    print(f"{workload} under {scenario}: {verdict}, {case['fired']} phases and faults")
    allowed = ("unaffected", "recovered") if scenario in survived else ("reported", "hang", "recovered")
    if verdict not in allowed or not case["fired"] or "FAILED" in case["scenario"]:
        sys.exit(case["scenario"])
    if scenario in survived:
        phases = len(tomllib.load(open(f"{sys.argv[3]}/{scenario}.toml", "rb"))["phase"])
        if case["scenario"].count("  ok ") != phases:
            sys.exit(f"{scenario} has {phases} phases, but played only these:\n" + case["scenario"])
if len(cases) != int(sys.argv[2]):
    sys.exit(f"{len(cases)} runs")
EOF2
}
under steady lost-ack cable-pulled both-links-down peer-gone slow-receiver slow-device error-under-load \
	reset-while-flushing fatal-without-completion gid-changes
under rails rails/port-flap rails/all-down
