#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Labs on three hosts, with two VMs each, on one network. Network namespaces stand for the hosts. Each lab has one VXLAN
# link to a kernel bridge in a fourth namespace, which learns the addresses of the VMs and floods frames for unknown
# ones.
# lab: crowd
# lab: timeout=900
. "$LAB_LIB"
. tests/vm/hosts.bash

end() {
	for n in 1 2 3; do lab_of $n down "host$n" >/dev/null 2>&1 || :; done
	kill "${pids[@]}" 2>/dev/null || :
}
trap end EXIT

first_host
hub=$host
at $hub ip link add bridge type bridge
at $hub ip link set bridge up
hosts=(0)
for n in 1 2 3; do
	next_host $hub "$n"
	hosts[n]=$host
	# The cable has room for a frame of 9000 bytes and the headers that a link adds.
	at $hub ip link add "host$n" mtu 9100 type veth peer name uplink mtu 9100 netns "${hosts[n]}"
	at $hub ip address add "192.0.2.$((2 * n))/31" dev "host$n"
	at $hub ip link set "host$n" up
	at "${hosts[n]}" ip address add "192.0.2.$((2 * n + 1))/31" dev uplink
	at "${hosts[n]}" ip link set uplink up
	at $hub ip link add "vxlan$n" mtu 9050 type vxlan id $n local "192.0.2.$((2 * n))" remote "192.0.2.$((2 * n + 1))" srcport 4789 4790 dstport 4789
	at $hub ip link set "vxlan$n" master bridge up
	mkdir -m 700 "$LAB_DIR/run-$n"
	cat >"$LAB_DIR/host$n.toml" <<-end
		first_number = $((2 * n - 1))
		memory = 640

		[[network]]
		name = "wire"
		fabric = "roce"
		subnet = 0

		[[network.link]]
		local = "192.0.2.$((2 * n + 1)):4789"
		peer = "192.0.2.$((2 * n)):4789"
		vni = $n

		[[vm]]
		name = "node$n"
		count = 2
	end
	XDG_RUNTIME_DIR=$LAB_DIR/run-$n at "${hosts[n]}" "$LAB_BIN" up "$LAB_DIR/host$n.toml" >"$LAB_DIR/up$n" 2>&1 &
	ups[n]=$!
done
for n in 1 2 3; do wait ${ups[n]} || fail "host $n: $(cat "$LAB_DIR/up$n")"; done
for n in 1 2 3; do lab_of $n status; done

# vm NUMBER COMMAND...: runs a command in VM 1 to 6, the first or second VM of a host.
vm() {
	local host=$((($1 + 1) / 2)) which=$((($1 + 1) % 2 + 1))
	lab_of $host exec --lab "host$host" --vm "node$host$which" --timeout 60 -- "${@:2}"
}
index() {
	vm "$1" sh -c 'cd /sys/class/infiniband/vrnic0/ports/1; for n in $(seq 0 15); do
		case $(cat gids/$n):$(cat gid_attrs/types/$n) in 0000:0000:0000:0000:0000:ffff:*v2) echo $n; exit; esac; done'
}
# pingpong SERVER CLIENT
pingpong() {
	local port=$((18600 + 10 * $1 + $2)) job
	vm "$1" ibv_rc_pingpong -d vrnic0 -g "$(index "$1")" -p $port -n 100 >/dev/null &
	job=$!
	within 40 vm "$1" sh -c "ss -Hltn sport = :$port | grep -q ." || fail "no server listens in VM $1"
	vm "$2" ibv_rc_pingpong -d vrnic0 -g "$(index "$2")" -p $port -n 100 "10.77.0.$1" | found usec/iter ||
		fail "no pingpong from VM $2 to VM $1"
	wait $job || fail "the pingpong in VM $1 failed"
}
# Each VM with one on its own host or on the next, so that every pair of hosts is covered.
for pair in "1 2" "2 3" "3 4" "4 5" "5 6" "6 1" "3 6"; do pingpong $pair; done

# The kernel's bridge forwarded the frames: it has learned the VMs' addresses at the links to their hosts.
at $hub bridge fdb show br bridge >"$LAB_DIR/fdb"
grep '52:54:00:76' "$LAB_DIR/fdb" || :
for n in 1 2 3 4 5 6; do
	grep -q "^52:54:00:76:72:$(printf %02x $((n + 9))) dev vxlan$(((n + 1) / 2)) " "$LAB_DIR/fdb" ||
		fail "the bridge has not learned VM $n: $(cat "$LAB_DIR/fdb")"
done

# The loss of a host does not affect the others.
lab_of 2 down host2
pingpong 1 6
