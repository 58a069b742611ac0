# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `vrnic-lab chaos` judges how programs handle faults. The test provokes each verdict, by a fault if one leads to it,
# otherwise by a program that behaves like that. It boots labs of its own.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: crowd
# lab: timeout=600
. "$LAB_LIB"

out=$LAB_DIR/chaos
judged() {
	python3 - "$out/report.json" "$@" <<'EOF'
import json, sys
cases = [case for case in json.load(open(sys.argv[1])) if case["fault"]]
wanted = sys.argv[2:]
got = [f'{case["fault"]["fault"].split()[0]}={case["verdict"]}' for case in cases]
fits = lambda got, wanted: got.split("=")[0] == wanted.split("=")[0] and got.split("=")[1] in wanted.split("=")[1].split("/")
if len(got) != len(wanted) or not all(map(fits, got, wanted)):
    sys.exit(f"judged {got}, expected {wanted}")
for case in cases:
    if case["verdict"] != "not-reached" and "wire" in case["fault"]["fault"] and not case["capture"]:
        sys.exit(f"no capture: {case}")
EOF
}
chaos() { "$LAB_BIN" --fabric "$FABRIC" chaos --labs 1 --out "$out" "$@"; }

# Faults of different kinds, each with the verdict that the programs' behaviour deserves. If a client cannot start, its
# server waits forever, as real ones do. A late packet is sent again or not: the requester probes when an answer takes
# longer than usual.
chaos pingpong --on client --fault 'drop type=rc nth=20' --fault 'delay type=rc nth=20' --fault 'unknown-opcode type=rc nth=20' \
	--fault 'lost-read-response type=rc' --fault 'cqe-lost type=rc nth=5' --fault 'cqe-late type=rc nth=5' \
	--fault 'no-memory' || fail "the run failed"
judged drop=recovered delay=unaffected/recovered unknown-opcode=reported lost-read-response=not-reached cqe-lost=hang cqe-late=unaffected no-memory=hang
grep -q 'remote invalid request error (9)' "$out/report.json" || fail "the client's output is not in the report"
grep -q 'data:application/vnd.tcpdump.pcap;base64,' "$out/index.html" || fail "the page has no capture"

# Faults that wait for traffic, in the other RNIC. A device that breaks for good is replaced before the next run.
chaos pingpong --on server --traffic --fault 'engine-panic' --fault 'nak-remote-access type=rc opcode=send dir=in' &&
	fail "an invalid fault is accepted"
chaos pingpong --on server --traffic --fault 'nak-remote-access type=rc' --fault 'engine-panic' --fault 'partition type=rc for=20ms' || fail "the run failed"
judged nak-remote-access=reported engine-panic=hang/reported partition=recovered

# Scenarios are played while programs run. The evidence has their phases.
send='ib_send_bw -b -F -d $DEV -x $GID -s 16384 -f 1 -D 3 -p 18517'
chaos --listen 18517 --scenario cable-pulled --scenario error-under-load -- "$send" --- "$send \$SERVER" || fail "the run failed"
judged cable-pulled=recovered error-under-load=reported/hang
grep -q 'ok      the cable is back' "$out/report.json" || fail "the report does not say what the scenario found"
grep -q 'The phases of the scenario:' "$out/index.html" || fail "the page has no phases"
said=$(chaos pingpong --scenario no-such-scenario 2>&1) && fail "a scenario that does not exist is accepted"
found 'no scenario is called "no-such-scenario"' <<<"$said" || fail "a scenario that does not exist: $said"
said=$(chaos pingpong --scenario rails/port-flap 2>&1) && fail "a scenario of rails is accepted without rails"
found 'needs a workload with several RNICs' <<<"$said" || fail "a scenario of rails without rails: $said"

# Custom programs. No fault fires, because they send nothing. How the lab judges programs does not depend on the fabric.
# A crash, damaged data, a kernel report and no effect, under the first, second, third and fourth fault.
misbehaves='echo x >>/tmp/runs; case $(wc -l </tmp/runs) in 2) kill -SEGV $$ ;; 3) echo "byte 7 differs at the end" ;; 4) echo "BUG: not really" >/dev/kmsg ;; esac'
chaos --fault 'drop type=rc' --fault 'delay type=rc' --fault 'duplicate type=rc' --fault 'mute type=rc' --seconds 5 --wrong-data 'differs at' -- true --- "$misbehaves" &&
	fail "programs that misbehave do not fail the run"
judged drop=crash delay=wrong-data duplicate=kernel-report mute=not-reached

thorough || exit 0

# Soft-RoCE, whose packets go through the switch.
chaos --device rxe pingpong --on client --fault 'cqe-lost' && fail "a fault that a switch cannot have is accepted"
chaos --device rxe pingpong --on client --fault 'drop type=rc nth=20' || fail "the run with Soft-RoCE failed"
judged drop=recovered
grep -q '"device": "rxe"' "$out/report.json" || fail "the report does not name the device"

chaos --fault 'drop type=rc' -- true --- true || fail "the run of programs that do nothing failed"
judged drop=not-reached
# A program that fails without any fault proves nothing.
chaos --fault 'drop type=rc' -- true --- false && fail "a workload that fails without a fault is accepted"
chaos --fault 'drop type=rc' --seconds 2 --fail-on hang -- true --- 'echo x >>/tmp/runs; [ $(wc -l </tmp/runs) = 1 ] || sleep 60' && fail "--fail-on is ignored"
judged drop=hang
