# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# VMs with four RNICs each: the scenarios for them end as documented while two of the rails have traffic. A rail whose
# link flaps keeps its connection, and the other rail is not affected.
# lab: crowd
# lab: timeout=900
. "$LAB_LIB"

scenarios=$(dirname "$LAB_LIB")/../vrnicctl/scenarios/rails
export XDG_RUNTIME_DIR=$LAB_DIR/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
on_rails() { "$LAB_BIN" exec --lab rails "$@" </dev/null; }
trap '"$LAB_BIN" down rails >/dev/null || :' EXIT
sed 's/^name = "rails"/&\nmemory = 768/' "$scenarios/lab.toml" >"$LAB_DIR/lab.toml"
"$LAB_BIN" up "$LAB_DIR/lab.toml"
VRNIC_CONTROL=$("$LAB_BIN" ctl --lab rails control)
export VRNIC_CONTROL

# index VM DEVICE: prints the index of the device's IPv4 GID.
index() {
	on_rails --vm "$1" -- sh -c "cd /sys/class/infiniband/$2/ports/1; for n in \$(seq 0 15); do
		case \$(cat gids/\$n):\$(cat gid_attrs/types/\$n) in 0000:0000:0000:0000:0000:ffff:*v2) echo \$n; exit; esac; done"
}
# traffic RAIL: runs ib_write_bw from a to b on this rail, for longer than the test takes. All requests are from a, so
# only a can miss answers. On a rail that must not miss any, two busy processors must not look like a lost packet, so
# its timeout is 4 s.
traffic() {
	local port=$((18600 + $1)) timeout=14
	[ "$1" = 1 ] || timeout=20
	local write="ib_write_bw -d vrnic$1 -p $port -F -D 1 --run_infinitely -u $timeout"
	on_rails --vm b --timeout 300 -- $write -x "$(index b "vrnic$1")" >"$LAB_DIR/server$1" 2>&1 &
	jobs+=($!)
	within 60 on_rails --vm b -- sh -c "ss -Hltn sport = :$port | grep -q ." || fail "no server listens on rail $1"
	on_rails --vm a --timeout 300 -- $write -x "$(index a "vrnic$1")" "$(address b $1)" >"$LAB_DIR/client$1" 2>&1 &
	jobs+=($!)
}
# address VM RAIL: prints its IPv4 address on this rail.
address() { on_rails --vm "$1" -- sh -c "cd /sys/class/infiniband/vrnic$2/ports/1/gid_attrs; ip -4 -o address show dev \$(cat ndevs/$(index "$1" "vrnic$2"))" | sed "s/.*inet \([0-9.]*\).*/\1/"; }

for scenario in port-flap all-down; do
	jobs=()
	for rail in 0 1; do traffic $rail; done
	vrnicctl fault run "$scenarios/$scenario.toml" || fail "$scenario fails: $(cat "$LAB_DIR"/client*)"
	for vm in a b; do on_rails --vm $vm -- pkill -x ib_write_bw || true; done
	wait "${jobs[@]}" || true
	[ "$(vrnicctl -j fault list | tr -d ' \n')" = '[]' ] || fail "$scenario leaves faults armed"
done
