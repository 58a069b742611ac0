# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Sourced by VM tests (tests/vm/*.sh), which run on the host: `. "$LAB_LIB"`. See tools/lab/README.md.
set -euo pipefail

# on [-t SECONDS] VM COMMAND...: runs a command in a VM; streams and exit code pass through.
on() {
	local timeout=60
	if [ "$1" = -t ]; then
		timeout=$2
		shift 2
	fi
	local vm=$1
	shift
	"$LAB_BIN" exec --vm "$vm" --timeout "$timeout" -- "$@" </dev/null
}

# thorough: whether all tests are wanted (make test-all). Without that, a test may leave out cases that are like others.
thorough() { [ "$LAB_ALL" = true ]; }

# lab REQUEST...: asks or steers the lab, see `vrnic-lab ctl --help`.
lab() { "$LAB_BIN" ctl "$@"; }

# perf [-6] CLIENT SERVER PROGRAM ARGS...: a perftest or pingpong pair, over IPv6; prints the client's output.
perf() { "$LAB_BIN" ctl perf "$@"; }

# ack_timeout: an exponent for perftest's -u, which is 14 if not given. Soft-RoCE acknowledges as late as its VM is slow.
ack_timeout() {
	local exponent=16 slowness
	for ((slowness = LAB_SLOWNESS; slowness > 1; slowness /= 2)); do
		exponent=$((exponent + 1))
	done
	echo $exponent
}

# within SECONDS COMMAND...: repeats the command until it succeeds; fails when it did not in that time.
within() {
	local end=$((SECONDS + $1 * LAB_SLOWNESS))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.2
	done
}

# listening VM PORT: waits until a program in the VM listens there, through rdma_cm or TCP.
listening() {
	within 40 on "$1" sh -c "rdma resource show cm_id | grep -q 'state LISTEN .*:$2 ' || ss -Hltn sport = :$2 | grep -q ." ||
		fail "no server listens on port $2 of VM $1"
}

# connected VM PORT: waits until a program in the VM has a TCP connection to that port of another.
connected() {
	within 40 on "$1" sh -c "ss -Htn state established dport = :$2 | grep -q ." || fail "VM $1 has no connection to port $2"
}

# pair SERVER CLIENT PORT COMMAND COMMAND: runs the first command in VM SERVER and, as soon as somebody listens on PORT
# there, the second in VM CLIENT. Both must succeed.
pair() {
	on -t 90 "$1" sh -c "$4" >/dev/null &
	local job=$!
	listening "$1" "$3"
	on -t 60 "$2" sh -c "$5" >/dev/null || fail "in VM $2: $5"
	wait $job || fail "in VM $1: $4"
}

# managed SERVER CLIENT ADDRESS PROGRAM ARGS...: a perftest pair that rdma_cm connects, the client to ADDRESS. Both must
# succeed. perftest's client asks for its connection when the ends have met over TCP, be the server listening or not, and
# crashes after the refusal. That says nothing about the device, so the pair is run again.
MANAGED_PORT=17000
managed() {
	local server=$1 client=$2 address=$3 server_device=DEV_$1 client_device=DEV_$2 try command job output
	for try in 1 2 3; do
		# A port of the try before may linger.
		command="${*:4} -R -F -p $((++MANAGED_PORT))"
		on -t 90 "$server" sh -c "$command -d ${!server_device}" >/dev/null &
		job=$!
		listening "$server" $MANAGED_PORT
		if output=$(on -t 60 "$client" sh -c "$command -d ${!client_device} $address" 2>&1); then
			wait $job || fail "in VM $server: $command"
			return
		fi
		echo "$output"
		# Nobody listens, says the peer: IB_CM_REJ_INVALID_SERVICE_ID or, for datagrams, IB_SIDR_UNSUPPORTED.
		case $output in
		*"RDMA_CM_EVENT_REJECTED; error: 8."* | *"RDMA_CM_EVENT_UNREACHABLE; error: 1."*) ;;
		*) break ;;
		esac
		pkill -P $job || :
		wait $job || :
	done
	fail "in VM $client: $command, try $try"
}

# copied SERVER CLIENT PORT ADDRESS: rcopy brings a file of VM CLIENT to VM SERVER, which has that address.
copied() {
	local job there
	on -t 120 "$1" rcopy -p "$3" >/dev/null &
	job=$!
	listening "$1" "$3"
	on "$2" sh -c 'head -c 3000000 /dev/urandom >/tmp/sent'
	on -t 60 "$2" rcopy /tmp/sent "$4:/tmp/received" -p "$3" >/dev/null || fail "rcopy from VM $2 to VM $1"
	there=$(on "$1" sh -c 'sha256sum </tmp/received; rm /tmp/received')
	[ "$there" = "$(on "$2" sh -c 'sha256sum </tmp/sent; rm /tmp/sent')" ] || fail "the file that rcopy copied differs"
	# The server does not end by itself.
	pkill -P $job
}

# at_once COMMAND COMMAND: runs both at the same time. Both must succeed.
at_once() {
	$1 &
	local job=$!
	$2
	wait $job
}

# busy VM PORT: traffic in loopback, every byte verified, until `enough VM PORT`. Fails when any fails.
busy() {
	on -t 280 "$1" sh -c "until [ -e /tmp/enough-$$-$2 ]; do
		vrnic-stress --device $DEV --gid $GID_INDEX --port $2 --seconds 3 --qps 2 || exit 1
	done"
}
enough() { on "$1" touch "/tmp/enough-$$-$2"; }

# before_failure WHAT VICTIM: starts in VM a what notices that its device fails: the program VICTIM, which must end with
# an error, one that opens the device again, a listener to events, and a kernel user. Returns when the last three are
# ready. WHAT goes into messages.
before_failure() {
	on -t 60 a sh -c "timeout 50 ibv_asyncwatch -d $DEV > /tmp/events 2>&1; true" &
	watch=$!
	on -t 100 a sh -c "$2; echo exit \$?" >"$LAB_DIR/victim" &
	victim=$!
	rm -f "$LAB_DIR/program"
	on -t 200 a sh -c "RDMAV_ALLOW_DISASSOC_DESTROY=1 vrnic-verbs-check --device $DEV --gid $GID_INDEX --recover import zero-length extended-interface-all; echo program exit \$?" >"$LAB_DIR/program" &
	program=$!
	on a modprobe vrnic-drain
	within 60 grep -sq 'kill the device' "$LAB_DIR/program" || fail "$1: the program is not ready: $(cat "$LAB_DIR/program")"
	within 20 on a grep -q 'async event FD' /tmp/events || fail "$1: ibv_asyncwatch does not start"
}

# after_failure WHAT: waits until all of them have noticed, and the program works again with the device.
after_failure() {
	wait $victim || fail "$1: the program on the failed device does not end"
	grep -q 'exit 1' "$LAB_DIR/victim" || fail "$1: the program did not see an error: $(cat "$LAB_DIR/victim")"
	wait $program || fail "$1: the program does not end: $(cat "$LAB_DIR/program")"
	grep -q 'program exit 0' "$LAB_DIR/program" || fail "$1: the program could not continue: $(cat "$LAB_DIR/program")"
	grep -q 'the device is back' "$LAB_DIR/program" || fail "$1: the program did not notice"
	within 20 on a grep -q DEVICE_FATAL /tmp/events || fail "$1: no device-fatal event"
	on a pkill -x ibv_asyncwatch || true
	wait $watch
	on a dmesg | tail -n 60 | found "drained: 16 receives flushed, .* 0 others" || fail "$1: the kernel's receives were not flushed"
	on a modprobe -r vrnic-drain
}

# active VM: waits until the RNIC's port is active.
active() {
	within 40 on "$1" sh -c "ibv_devinfo -d $DEV 2>/dev/null | grep -q PORT_ACTIVE" || fail "the port of VM $1 is not active"
}

# bound VM: the virtio device that the driver is bound to.
bound() {
	on "$1" sh -c 'basename /sys/bus/virtio/drivers/vrnic/virtio*' | grep -x 'virtio[0-9]*' ||
		fail "no device is bound to the driver of VM $1"
}

# driver VM bind|unbind DEVICE: binds the driver to a virtio device, or unbinds it.
driver() { on -t 120 "$1" sh -c "echo $3 >/sys/bus/virtio/drivers/vrnic/$2"; }

# logged VM PATTERN: how many lines of the kernel's log match.
logged() { on "$1" dmesg | grep -c "$2" || :; }

# logs VM PATTERN COUNT: whether more than COUNT lines match.
logs() { [ "$(logged "$1" "$2")" -gt "$3" ]; }

# found PATTERN, with grep's options: whether a line of the input matches. Reads to the end, because the writer into a
# pipe that `grep -q` has left fails, and with it the pipeline.
found() { [ "$(grep -c "$@")" -gt 0 ]; }

# vrnicctl ARGS...: asks the lab's vrnicd, on the host.
vrnicctl() { "$VRNICCTL" "$@"; }

# fail TEXT...: ends the test.
fail() {
	printf 'FAIL: %s\n' "$*" >&2
	exit 1
}

# skip TEXT...: ends the test as skipped.
skip() {
	printf 'skipped: %s\n' "$*"
	exit 77
}
