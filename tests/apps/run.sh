#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `make test-apps`: programs of Debian 13 in labs of four VMs, with vrnic on each fabric and with Soft-RoCE. In each lab two
# VMs have Debian's kernel, and two the lab's, which has SMC. Writes build/apps/report.json, and the log of each program.
# usage: run.sh [PART,...]   only programs whose name contains one of these
#        PATHS='local roce infiniband rxe': only those labs
#
# The files *.bash beside this say what runs:
#   program BYTES NAME FUNCTION   FUNCTION runs it, and fails if it is not right. So many bytes must have left the RDMA
#                                 devices of the four VMs.
#   fails 'PATH...' PATTERN WHY   The program before is known to fail there, for a reason that is not ours; its output then
#                                 has a line that matches. If it does not fail, or otherwise, this test fails.
#   not_on 'PATH...' WHY          The program before cannot use such a device, and does not run there.
#   keeps                         The program before leaves a kernel module in use, so it is the last one in its lab.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/apps
export LAB_BIN=$PWD/tools/target/release/vrnic-lab
VMS=(debian1 debian2 lab1 lab2)
PATHS=${PATHS:-local roce infiniband rxe}

names=() functions=() bytes=()
declare -A pattern why kept without
program() {
	bytes+=("$1") names+=("$2") functions+=("$3")
}
keeps() { kept["${names[-1]}"]=yes; }
fails() {
	local path
	for path in $1; do
		pattern["${names[-1]}/$path"]=$2
		why["${names[-1]}/$path"]=$3
	done
}

not_on() {
	local path
	for path in $1; do without["${names[-1]}/$path"]=$2; done
}

# on VM COMMAND...: runs a command in a VM. The time limit ends what hangs, on slow machines too.
on() { "$LAB_BIN" exec --lab "$lab" --vm "$1" --timeout 600 -- "${@:2}" </dev/null; }
# all COMMAND...: in all VMs; each line has the VM's name before it.
all() { "$LAB_BIN" exec --lab "$lab" --all --timeout 600 -- "$@" </dev/null; }
fail() {
	echo "$*" >&2
	exit 1
}
# within SECONDS COMMAND...: repeats the command until it succeeds; fails when it did not in that time.
within() {
	local end=$((SECONDS + $1))
	until "${@:2}"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.5
	done
}
# listening VM PORT: waits until a program in the VM listens there, through rdma_cm or TCP.
listening() {
	within 300 on "$1" sh -c "rdma resource show cm_id | grep -q 'state LISTEN .*:$2 ' || ss -Hltn sport = :$2 | grep -q ."
}
# start VM COMMAND...: in the background. Killed, it ends in the VM too.
start() { "$LAB_BIN" exec --lab "$lab" --vm "$1" --timeout 600 -- "${@:2}" </dev/null & }
# served SERVER PORT COMMAND CLIENT COMMAND: runs a command in one VM and, when it listens, a command in another. Both
# must succeed.
served() {
	local job wrong=
	start "$1" sh -c "$3"
	job=$!
	if ! listening "$1" "$2"; then
		wrong="no server listens on port $2 of VM $1"
	elif ! on "$4" sh -c "$5"; then
		wrong="the client fails: $5"
	fi
	[ -z "$wrong" ] || kill $job 2>/dev/null || :
	wait $job || fail "${wrong:-the server failed: $3}"
	[ -z "$wrong" ] || fail "$wrong"
}
# saying PATTERN COMMAND...: runs it, shows what it says, and fails if no line matches.
saying() {
	local said
	said=$("${@:2}" 2>&1 | tr -d '\0') || { echo "$said"; fail "this command failed: ${*:2}"; }
	echo "$said"
	grep -qE -- "$1" <<<"$said" || fail "no output line matches $1"
}

for file in fio libfabric mpi ucx sockets; do . "tests/apps/$file.bash"; done
parts=${1:-}
# wanted NAME
wanted() {
	local part
	[ -n "$parts" ] || return 0
	for part in ${parts//,/ }; do [[ $1 != *"$part"* ]] || return 0; done
	return 1
}

# What has left the RDMA devices. Soft-RoCE counts no bytes: a packet has at most 4096.
sent() {
	all sh -c "cd /sys/class/infiniband/$device/ports/1/hw_counters; cat tx_bytes 2>/dev/null || echo \$((\$(cat sent_pkts) * 4096))" |
		awk '{ sum += $2 } END { printf "%.0f\n", sum }'
}
# RDMA objects of programs and modules.
objects() { all rdma resource show | sort; }
clean() { [ "$(objects)" = "$before_all" ]; }
complaints() {
	local vm
	for vm in "${VMS[@]}"; do
		"$LAB_BIN" logs --lab "$lab" "$vm" >"$out/$path/console-$vm.log"
		! grep -HnE 'BUG:|WARNING:|Oops|Call Trace:|refcount_t:|INFO: task|Kernel panic|unable to handle|panicked' \
			"$out/$path/console-$vm.log" || return 0
	done
	return 1
}

# active: checks whether a subnet manager has brought up the ports of all VMs.
active() { [ "$(all cat /sys/class/infiniband/$device/ports/1/state | grep -c ACTIVE)" = ${#VMS[@]} ]; }

# What programs of two VMs use: `peer` is the VM of the client, and `server` the address by which rdma_cm finds debian1.
# On InfiniBand, that is one of IPoIB, which the lab's kernel does not have.
up() {
	local nic vm number topology=
	peer=lab1 server=10.77.0.1
	case $path in
	local | roce) nic='[[vm.rnic]]' device=vrnic0 ;;
	infiniband)
		nic='[[vm.rnic]]' device=vrnic0 peer=debian2 server=10.99.0.1
		# Two switches. Packets of debian1 to debian2 and to lab1 pass both.
		topology='
			[[network.topology.switch]]
			name = "switch1"
			ports = 3
			[[network.topology.switch]]
			name = "switch2"
			ports = 3
			[[network.topology.link]]
			ends = ["switch1/3", "switch2/3"]'
		number=0
		for vm in debian1 debian2 lab2 lab1; do
			topology+="
				[[network.topology.hca]]
				name = \"$vm\"
				[[network.topology.link]]
				ends = [\"$vm\", \"switch$((number % 2 + 1))/$((number / 2 + 1))\"]"
			number=$((number + 1))
		done
		;;
	rxe) nic='[[vm.netdev]]' device=rxe0 ;;
	esac
	lab=apps-$path
	mkdir -p "$out/$path"
	cat >"$out/$path/$lab.toml" <<-end
		memory = 1024
		image = "$(readlink -f build/setup/apps)"
		[[network]]
		name = "net"
		fabric = "${path/rxe/roce}"
		$topology
	end
	for kernel in stock lab; do
		cat >>"$out/$path/$lab.toml" <<-end
			[[vm]]
			name = "${kernel/stock/debian}"
			count = 2
			kernel = "$kernel"
			$nic
			network = "net"
			$([ "$path" != rxe ] || echo 'soft_roce = true')
		end
	done
	"$LAB_BIN" up "$out/$path/$lab.toml"
	# mpirun starts its processes through ssh, with a key of this lab.
	all sh -c 'mkdir -p -m 700 ~/.ssh /run/sshd && ssh-keygen -q -t ed25519 -N "" -f /run/sshd/key'
	on debian1 sh -c 'ssh-keygen -q -t ed25519 -N "" -f ~/.ssh/id_ed25519'
	all sh -c "echo '$(on debian1 sh -c 'cat ~/.ssh/id_ed25519.pub')' >~/.ssh/authorized_keys
		/usr/sbin/sshd -h /run/sshd/key -o UsePAM=no -o StrictModes=no"
	[ $path = infiniband ] || return 0
	# OpenSM runs in debian1.
	within 120 active || fail "OpenSM does not bring up all ports"
	for number in 1 2; do
		on debian$number sh -ec "modprobe ib_ipoib; ip link set ib0 up; ip addr add 10.99.0.$number/24 dev ib0"
	done
	within 120 on debian2 ping -c 1 -W 2 $server >/dev/null || fail "IPoIB carries nothing"
}
down() {
	[ -z "${lab:-}" ] || "$LAB_BIN" down "$lab" >/dev/null || :
	lab=
}
XDG_RUNTIME_DIR=$(mktemp -dt vrnic-apps.XXXXXX)
export XDG_RUNTIME_DIR
trap 'down; rm -rf "$XDG_RUNTIME_DIR"' EXIT
trap 'exit 130' INT TERM

# run NUMBER: one program in the lab that is up. Adds a line to the results.
run() {
	local name=${names[$1]} key=${names[$1]}/$path log start=$SECONDS job status=0 result=ok reason= left
	log=$out/$path/$(tr -cs 'A-Za-z0-9\n' - <<<"$name").log
	left=$(sent)
	(
		set -e
		"${functions[$1]}"
	) >"$log" 2>&1 &
	job=$!
	wait $job || status=$?
	left=$(($(sent) - left))
	if [ $status = 0 ] && [ $left -lt "${bytes[$1]}" ]; then
		status=1
		echo "only $left bytes have left the RDMA devices" >>"$log"
	fi
	if [ -z "${kept[$name]:-}" ] && ! within 60 clean; then
		status=1
		printf 'RDMA objects are left, before and now:\n%s\n%s\n' "$before_all" "$(objects)" >>"$log"
	fi
	if [ $status != 0 ]; then
		result=failed reason=$(tail -n 1 "$log")
		if [ -n "${pattern[$key]:-}" ] && grep -qE -- "${pattern[$key]}" "$log"; then
			result=known reason=${why[$key]}
		fi
	elif [ -n "${pattern[$key]:-}" ]; then
		result=failed reason="it is known to fail here, and does not: ${why[$key]}"
	fi
	printf '%-10s %-56s %s (%d s)%s\n' "$path" "$name" "${result/known/fails, as known}" $((SECONDS - start)) "${reason:+: $reason}"
	printf '%s\t%s\t%s\t%s\n' "$name" "$path" "$result" "$reason" >>"$out/results.tsv"
	# Nothing of it goes on.
	[ $result = ok ] || all sh -c 'pkill -9 -x "mpirun|prterun|prted|python3|ucx_perftest|fi_pingpong|fio" || :'
}

mkdir -p "$out"
: >"$out/results.tsv"
for path in $PATHS; do
	rm -rf "${out:?}/$path"
	up
	before_all=$(objects)
	for number in "${!names[@]}"; do
		wanted "${names[$number]}" || continue
		reason=${without[${names[$number]}/$path]:-}
		[ -z "$reason" ] || {
			printf '%-10s %-56s does not run: %s\n' "$path" "${names[$number]}" "$reason"
			continue
		}
		run "$number"
	done
	if complaints >"$out/complaints"; then
		printf 'kernel\t%s\tfailed\t%s\n' "$path" "a VM's kernel complains: $(head -n 1 "$out/complaints")" >>"$out/results.tsv"
		cat "$out/complaints"
	fi
	down
done
python3 tests/apps/report.py "$out"
