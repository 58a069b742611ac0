# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Every scenario that comes with vrnic ends as documented while a program has traffic, and a scenario whose conditions
# are not met fails.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=300
. "$LAB_LIB"

scenarios=$(dirname "$LAB_LIB")/../vrnicctl/scenarios

# traffic: runs ibv_rc_pingpong in both VMs, for longer than the scenarios take.
traffic() {
	on -t 100 b ibv_rc_pingpong -d "$DEV_b" -g "$GID_INDEX" -n 100000000 > "$LAB_DIR/server" 2>&1 &
	jobs=($!)
	listening b 18515
	on -t 100 a ibv_rc_pingpong -d "$DEV_a" -g "$GID_INDEX" -n 100000000 "$IP_b" > "$LAB_DIR/client" 2>&1 &
	jobs+=($!)
}
finish() {
	on a pkill ibv_rc_pingpong || true
	on b pkill ibv_rc_pingpong || true
	wait "${jobs[@]}" || true
}

for file in "$scenarios"/*.toml; do
	traffic
	vrnicctl fault run "$file" || fail "$(basename "$file") does not play as it says"
	finish
	[ "$(vrnicctl -j fault list | tr -d ' \n')" = '[]' ] || fail "$(basename "$file") leaves faults armed"
	active a
	active b
done

cat > "$LAB_DIR/unmet.toml" <<'TOML'
about = "Nothing uses the device, so nothing fires."
device = "a"
timeout = 0.5
[[phase]]
name = "no program sends"
link = [{ state = "down" }]
arm = [{ fault = "drop type=rc" }]
wait = [{ fired = "drop" }]
TOML
vrnicctl fault run "$LAB_DIR/unmet.toml" > "$LAB_DIR/unmet" 2>&1 &&
	fail "a scenario whose expectation fails is reported as passed"
found 'FAILED  no program sends' < "$LAB_DIR/unmet"
[ "$(vrnicctl -j fault list | tr -d ' \n')" = '[]' ] || fail "a failed scenario leaves faults armed"
active a
