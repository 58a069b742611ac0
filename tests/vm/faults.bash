# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Functions for tests that show that programs see faults. Such a test ends with `all_seen`.

seen=0
wrong=0
# Program that ping_pong runs, its arguments, and additional ones.
program=ibv_rc_pingpong
arguments="-n 40 -s 6000 -m 1024"
flags=
# A fault that ping_pong arms first, after the name of its device.
also=
# Text in the output of a program that fails as expected.
words=

# arm DEVICE FAULT: arms a fault and prints its number.
arm() { vrnicctl fault add -d "$1" $2 || fail "$2 cannot be armed"; }

# statuses FILE...: prints the numbers of the ibv_wc_status values with which programs ended.
statuses() { cat "$@" | sed -n 's/.*Failed status [^0-9]*\([0-9][0-9]*\).*/\1/p' | sort -n | uniq | tr '\n' ' '; }

# ping_pong FAULT DEVICE EXPECTED: runs the program between the VMs, with the server in b. EXPECTED is `ok`, the number
# of an ibv_wc_status with which either end fails, `hangs`, or `told` if the client fails with `words`. If the result
# depends on chance, EXPECTED is a list separated by "/". If FAULT starts with "+", the fault waits until the program
# has sent nine packets.
ping_pong() {
	local fault=$1 device=$2 expected=$3 patience=25 server code=0 outcome
	[ "$expected" = hangs ] && patience=4
	vrnicctl fault clear >/dev/null
	if [[ $fault = +* ]]; then
		fault="${fault#+} after-fault=$(arm "$device" "duplicate type=rc nth=10")"
	fi
	[ -z "$also" ] || arm "${also%% *}" "${also#* }" >/dev/null
	arm "$device" "$fault" >/dev/null
	on -t 60 b timeout 50 $program -d "$DEV_b" -g "$GID_INDEX" $arguments $flags > "$LAB_DIR/server" 2>&1 &
	server=$!
	listening b 18515
	on -t 60 a timeout $patience $program -d "$DEV_a" -g "$GID_INDEX" $arguments $flags "$IP_b" > "$LAB_DIR/client" 2>&1 || code=$?
	# The kernel only keeps 15 characters of the name.
	[ $code = 0 ] || on b pkill "${program:0:15}" || true
	wait $server || true
	outcome=$(statuses "$LAB_DIR/client" "$LAB_DIR/server")
	if [ $code = 0 ]; then outcome="ok $outcome"; fi
	if [ $code = 124 ]; then outcome="hangs $outcome"; fi
	if [ $code != 0 ] && [ -n "$words" ] && grep -q "$words" "$LAB_DIR/client"; then outcome="told $outcome"; fi
	judge "$fault" "$device" "$expected" "$outcome"
}

# transfer FAULT DEVICE EXPECTED PROGRAM ARGS...: does the same with a perftest program.
transfer() {
	local fault=$1 device=$2 expected=$3 server code=0 outcome
	shift 3
	vrnicctl fault clear >/dev/null
	arm "$device" "$fault" >/dev/null
	on -t 60 b timeout 40 "$@" -d "$DEV_b" -x "$GID_INDEX" -F > "$LAB_DIR/server" 2>&1 &
	server=$!
	listening b 18515
	on -t 60 a timeout 25 "$@" -d "$DEV_a" -x "$GID_INDEX" -F "$IP_b" > "$LAB_DIR/client" 2>&1 || code=$?
	[ $code = 0 ] || on b pkill "${1:0:15}" || true
	wait $server || true
	outcome=$(statuses "$LAB_DIR/client")
	if [ $code = 0 ]; then outcome="ok $outcome"; fi
	judge "$fault" "$device" "$expected" "$outcome"
}

# Checks that a fault was seen as expected and that it fired.
judge() {
	local fault=$1 device=$2 expected=$3 outcome=$4 fired one good=
	for one in ${expected//\// }; do
		if [[ " $outcome " = *" $one "* ]]; then good=yes; fi
	done
	fired=$(vrnicctl -j fault list -d "$device" | python3 -c 'import json, sys
print([one["fired"] for one in json.load(sys.stdin) if one["fault"].split()[0] == sys.argv[1]][-1])' "${fault%% *}")
	if [ "$fired" -gt 0 ] && [ -n "$good" ]; then
		seen=$((seen + 1))
		echo "seen    $fault on $device: $outcome(fired $fired)"
	else
		wrong=$((wrong + 1))
		echo "WRONG   $fault on $device: expected $expected, outcome $outcome(fired $fired)"
		tail -n 3 "$LAB_DIR/client" "$LAB_DIR/server" "$LAB_DIR/events" 2>/dev/null || true
	fi
	vrnicctl fault clear -d "$device" >/dev/null
}

# watching COMMAND...: runs a program in VM a that prints asynchronous events, until `unwatch`.
watching() {
	watched=$1
	# The job truncates the file too late, so the output of the previous program could be mistaken for this one's.
	: > "$LAB_DIR/events"
	on -t 200 a timeout 190 stdbuf -oL "$@" > "$LAB_DIR/events" 2>&1 &
	watcher=$!
	within 60 grep -q 'async event FD' "$LAB_DIR/events" || fail "$* does not start: $(cat "$LAB_DIR/events")"
	told_before=0
}
unwatch() {
	on a pkill -x "$watched" || true
	wait $watcher || true
}
# events: prints the numbers of the events that the program has printed after the first `told_before` lines.
events() { tail -n +$((told_before + 1)) "$LAB_DIR/events" | sed -n 's/.*event_type.*(\([0-9]*\)).*/\1/p'; }
# told NUMBER: checks whether this event is among them.
told() { events | found -x "$1"; }

# watch_events COMMAND...: each line of the input has the number of an ibv_event_type and the fault that raises it.
# Checks that the program sees each.
watch_events() {
	local expected fault
	watching "$@"
	while read -r expected fault; do
		told_before=$(wc -l < "$LAB_DIR/events")
		vrnicctl fault clear >/dev/null
		arm a "$fault" >/dev/null
		within 10 told "$expected" || true
		judge "$fault" a "$expected" "$(events | tr '\n' ' ')"
	done
	unwatch
}

# Ends the test.
all_seen() {
	echo "$seen faults seen as described, $wrong not"
	[ $wrong = 0 ] || fail "$wrong faults were not seen as described"
}
