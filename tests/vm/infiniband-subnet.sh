# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# VMs on different switches of an InfiniBand subnet that also has simulated HCAs. Traffic continues when links and
# switches fail, because OpenSM finds another path. Damaged bits are counted as errors. P_Keys separate tenants. When
# OpenSM in one VM is killed under traffic, the one in the other VM takes over. It copes with a cut link, and with HCAs
# that have one GUID. M_Keys protect ports. Programs are told of all these changes.
# lab: needs CONFIG_INFINIBAND_IPOIB=m
# lab: crowd
# lab: timeout=1200
. "$LAB_LIB"

export XDG_RUNTIME_DIR=$LAB_DIR/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
# on VM COMMAND...: runs a command in a VM of this lab, as in other tests.
on() {
	local timeout=60
	if [ "$1" = -t ]; then
		timeout=$2
		shift 2
	fi
	local vm=$1
	shift
	"$LAB_BIN" exec --lab subnet --vm "$vm" --timeout "$timeout" -- "$@" </dev/null
}
trap '"$LAB_BIN" down subnet >/dev/null || :' EXIT

# An error in the topology is reported with its line.
cat >"$LAB_DIR/subnet.toml" <<end
name = "subnet"
memory = 768

[[network]]
name = "net"
fabric = "infiniband"

[network.topology.fat-tree]
spines = 2
leaves = 4
hosts = 2

[[network.topology.hca]]
name = "twin1"
guid = 0x70

[[network.topology.hca]]
name = "twin2"
guid = 0x70

[[network.topology.link]]
ends = ["twin1", "spine1/9"]
up = false

[[network.topology.link]]
ends = ["twin2", "spine2/9"]
up = false

[[vm]]
name = "a"
rnic = [{ hca = "leaf1-h1", opensm_priority = 9 }, { hca = "leaf2-h1" }]

[[vm]]
name = "b"
rnic = [{ hca = "leaf3-h1", opensm_priority = 1 }, { hca = "leaf4-h1" }]
end
sed 's/^leaves = 4/leaves = 0/' "$LAB_DIR/subnet.toml" >"$LAB_DIR/wrong.toml"
if said=$("$LAB_BIN" up "$LAB_DIR/wrong.toml" 2>&1); then fail "an invalid topology was accepted"; fi
found -F 'wrong.toml:10: `leaves = 0`' <<<"$said" || fail "the error message does not name the mistake: $said"

"$LAB_BIN" up "$LAB_DIR/subnet.toml"
VRNIC_CONTROL=$("$LAB_BIN" ctl --lab subnet control)
export VRNIC_CONTROL

# The subnet has 8 HCAs, of which 4 are devices, and 6 switches. The twins are not plugged in.
on b ibnetdiscover >"$LAB_DIR/net"
grep -c '^Ca' "$LAB_DIR/net" | found -x 8 || fail "ibnetdiscover does not find the expected HCAs: $(cat "$LAB_DIR/net")"
grep -c '^Switch' "$LAB_DIR/net" | found -x 6 ||
	fail "ibnetdiscover does not find the expected switches: $(cat "$LAB_DIR/net")"
# lid NAME: prints the LID of a node.
lid() {
	sed -n "s/^Switch.*\"$1\" .* lid \([0-9]*\) .*/\1/p; s/^\[[0-9]*\].*\"H-.*# \"$1\" lid \([0-9]*\) .*/\1/p" "$LAB_DIR/net" | head -n 1 | grep .
}
lid_a=$(lid leaf1-h1) lid_b=$(lid leaf3-h1)
[ "$(on a cat /sys/class/infiniband/vrnic0/ports/1/lid)" = "$(printf '%#x' "$lid_a")" ] || fail "VM a is not leaf1-h1"
on b ibhosts | found leaf4-h2 || fail "ibhosts shows no simulated HCA"
# same_links: checks that the ports that iblinkinfo shows as active are those of the links that are up, at both ends.
same_links() {
	on a iblinkinfo -l >"$LAB_DIR/shown" || return 1
	sed -n 's,^0x[0-9a-f]* " *\([^"]*\)" *[0-9]* *\([0-9]*\)\[.*Active/ *LinkUp)==> *0x[0-9a-f]* *[0-9]* *\([0-9]*\)\[[^"]*" *\([^"]*\)".*,\1/\2 \4/\3,p' \
		"$LAB_DIR/shown" | sed 's,\(-h[0-9]*\)/1\b,\1,g' | sort >"$LAB_DIR/active"
	vrnicctl subnet list | awk '$3 == "up" { print $1, $2; print $2, $1 }' | sort >"$LAB_DIR/up"
	[ -s "$LAB_DIR/up" ] && cmp -s "$LAB_DIR/up" "$LAB_DIR/active"
}
# differences: prints what iblinkinfo shows as active, and which links are up.
differences() { diff "$LAB_DIR/up" "$LAB_DIR/active" || cat "$LAB_DIR/shown"; }
within 60 same_links || fail "iblinkinfo shows other links: $(differences)"

# Simulated HCAs answer pings with their names. Switches do not, and neither does a VM without a server.
pings() { on b ibping -c 2 -t "$1" "$2" 2>&1; }
simulated=$(lid leaf4-h2)
said=$(pings 5000 "$simulated") || :
found "^Pong from leaf4-h2 (Lid $simulated)" <<<"$said" && found ' 0% packet loss' <<<"$said" ||
	fail "a simulated HCA does not answer: $said"
on b ibsysstat -t 5000 "$simulated" host | found -x leaf4-h2 || fail "a simulated HCA does not tell its name"
on b smpquery nodedesc "$simulated" | found '\.leaf4-h2$' || fail "a simulated HCA has another description"
for silent in "$(lid leaf1)" "$lid_a"; do
	said=$(pings 100 "$silent") || :
	found ' 100% packet loss' <<<"$said" || fail "LID $silent answers: $said"
done
on -t 300 a ibping -S &
jobs=($!)
answers() { pings 1000 "$lid_a" | found "^Pong from $(on a hostname)"; }
within 60 answers || fail "ibping's server in VM a does not answer"
on a pkill -x ibping
wait "${jobs[@]}" || :

on b sminfo | found "sm lid $lid_a .* priority 9 .*SMINFO_MASTER" ||
	fail "the master subnet manager is not the expected one: $(on b sminfo)"
on b sminfo "$lid_b" | found 'priority 1 .*SMINFO_STANDBY' ||
	fail "there is no standby subnet manager: $(on b sminfo "$lid_b")"

lab_port=18600
# stream OPTION...: starts a connection from VM a to VM b that carries data until it is told to end. Its timeout is 4 s.
stream() {
	lab_port=$((lab_port + 1))
	local write="ib_write_bw -d vrnic0 -p $lab_port -F -D 1 --run_infinitely -u 20 $*"
	on -t 900 b $write >"$LAB_DIR/server" 2>&1 &
	streams=($!)
	within 60 on b sh -c "ss -Hltn sport = :$lab_port | grep -q ." || fail "no server listens: $(cat "$LAB_DIR/server")"
	on -t 900 a $write 10.77.0.2 >"$LAB_DIR/client" 2>&1 &
	streams+=($!)
}
# end_stream: ends the connection.
end_stream() {
	for vm in a b; do on $vm pkill -x ib_write_bw || :; done
	wait "${streams[@]}" || :
}
received() { on b cat /sys/class/infiniband/vrnic0/ports/1/hw_counters/rx_bytes; }
more() { [ "$(received)" -gt "$1" ]; }
# flows WHEN: checks that data sent from now on arrive.
flows() {
	local before
	before=$(received)
	within 60 more $((before + 200000)) || fail "no traffic $1: $(cat "$LAB_DIR/client")"
}
# by: prints the spine that packets from a to b pass.
by() { on a ibtracert "$lid_a" "$lid_b" | grep -o 'spine[12]' | sort -u; }
# leaves: prints the port by which they leave leaf1, as its forwarding table says.
leaves() { on a ibroute -n "$(lid leaf1)" "$lid_b" "$lid_b" | sed -n 's,^0x[0-9a-f]* 0*\([0-9]*\) .*,leaf1/\1,p'; }
passes() { [ "$(by)" = "$1" ] && [ "$(leaves)" = "$(uplink "$1")" ]; }
# uplink SPINE: prints the port of leaf1 that leads to the spine.
uplink() { vrnicctl subnet list leaf1 | sed -n "s,^\(leaf1/[0-9]*\) .*$1/.*,\1,p"; }
# active PORT: checks that a port of leaf1 is active.
active() { on a ibportstate "$(lid leaf1)" "${1#leaf1/}" query | found 'LinkState:\.*Active'; }
# reroutes WHO: cuts the link that packets from a to b pass, and plugs it in again when WHO has found another way.
reroutes() {
	local spine link
	spine=$(by)
	link=$(uplink "$spine")
	active "$link" || fail "the link at $link is not active"
	within 60 passes "$spine" || fail "leaf1 sends packets to VM b to $(leaves), not to $link"
	vrnicctl subnet link "$link" down
	vrnicctl subnet list leaf1 | found "^$link .* cut " || fail "the link at $link is not cut"
	within 60 passes "$(other "$spine")" || fail "$1 does not reroute around the link"
	flows "after $1 has rerouted"
	within 60 same_links || fail "iblinkinfo shows other links than are left: $(differences)"
	vrnicctl subnet link "$link" up
	within 60 same_links || fail "$1 does not bring up the link: $(differences)"
	flows "after the link has come back"
}
other() { [ "$1" = spine1 ] && echo spine2 || echo spine1; }

stream
flows "at all"
reroutes OpenSM
spine=$(by)
vrnicctl subnet switch "$spine" down
within 60 passes "$(other "$spine")" || fail "OpenSM does not reroute around the switch"
flows "after a switch failed"
on b ibswitches >"$LAB_DIR/switches"
! found "$spine" <"$LAB_DIR/switches" || fail "the failed switch is still in the subnet"
vrnicctl subnet switch "$spine" up
# Requests for counters pass a link when both of its ports are active, and the programs send them only once.
within 60 same_links || fail "not all links of the switch come back: $(differences)"
flows "after the switch came back"
end_stream

port=$(vrnicctl subnet list leaf1-h1 | sed -n 's,^leaf1/\([0-9]*\) .*,\1,p')
# counters VM ARGUMENT...: runs perfquery. It does not repeat a request, so it waits longer than VMs can be slow.
counters() { on "$1" perfquery -t 20000 "${@:2}"; }
# errors: prints the symbol errors of the switch port at VM a since the counter was last reset.
errors() { counters a "$(lid leaf1)" "$port" | sed -n 's/^SymbolErrorCounter:\.*//p'; }
# errors_at RATE: prints the number of errors in a run.
errors_at() {
	vrnicctl subnet link leaf1-h1 --bit-error-rate "$1"
	# The counters of 64 bits, which ibqueryerrors shows, are reset apart from the others.
	counters a -R "$(lid leaf1)" "$port"
	counters a -x -R "$(lid leaf1)" "$port" 0xfff0000
	counters a -E -R "$(lid leaf1)" "$port"
	lab_port=$((lab_port + 1))
	local command="ib_write_bw -d vrnic0 -p $lab_port -s 65536 -n 50 -F -u 17"
	on -t 120 b $command >/dev/null &
	local job=$!
	within 60 on b sh -c "ss -Hltn sport = :$lab_port | grep -q ." || fail "no server listens"
	on -t 120 a $command 10.77.0.2 >/dev/null || fail "a write fails with a bit error rate of $1"
	wait $job || fail "a write fails at the server with a bit error rate of $1"
	vrnicctl subnet link leaf1-h1 --bit-error-rate 0
	counted=$(errors)
}
# A run has 800 packets with 30 million bits, plus the packets that are sent again.
errors_at 0
[ "$counted" = 0 ] || fail "$counted errors are counted although no bit was damaged"
errors_at 1e-7
some=$counted
errors_at 3e-6
[ "$counted" -gt 30 ] && [ "$counted" -gt "$some" ] ||
	fail "$some errors at a bit error rate of 1e-7, but $counted at 3e-6"
# The program fails if it finds any errors.
on b ibqueryerrors -t 20000 >"$LAB_DIR/errors" || :
found "SymbolErrorCounter == $counted " <"$LAB_DIR/errors" ||
	fail "ibqueryerrors shows unexpected errors: $(cat "$LAB_DIR/errors")"
# Most damaged packets have a wrong CRC, and some a wrong length.
counters b -E "$(lid leaf1)" "$port" >"$LAB_DIR/details"
sed -n 's/^Port\(LocalPhysical\|MalformedPkt\)Errors:\.*//p' "$LAB_DIR/details" |
	awk '{ sum += $1 } END { print sum }' | found -x "$counted" || fail "the errors are of another kind: $(cat "$LAB_DIR/details")"
# What perfquery shows of a port, with each option that the agents support.
for option in -x -X -S -D -E -c; do
	counters b $option "$(lid leaf1)" "$port" | found '^# Port' || fail "perfquery $option shows nothing"
done

# event VM NAME: checks whether the first RNIC of a VM has had this event.
event() { on "$1" grep -q "IBV_EVENT_$2 " /run/events; }
for vm in a b; do
	on -t 900 $vm sh -c 'ibv_asyncwatch -d vrnic0 >/run/events' &
	jobs+=($!)
	within 60 on $vm grep -q 'async event FD' /run/events || fail "ibv_asyncwatch does not begin in VM $vm"
	! on $vm grep IBV_EVENT_ /run/events || fail "an event in VM $vm that nothing caused"
done

# One tenant has the first RNICs of both VMs, and another one has the second RNICs. In the default partition, only the
# HCA of OpenSM is a full member, so that limited members can talk to it but not to each other.
cat >"$LAB_DIR/partitions.conf" <<end
Default=0x7fff, ipoib: ALL=limited, SELF=full;
blue=0x1, ipoib: 0x505400fffe76720a=full, 0x505400fffe76720b=full;
red=0x2: 0x505400fffe76730a=full, 0x505400fffe76730b=full;
end
for vm in a b; do
	"$LAB_BIN" copy --lab subnet "$LAB_DIR/partitions.conf" $vm:/run/opensm/
	on $vm pkill -HUP -x opensm
done
# keys VM DEVICE KEY KEY: checks whether the P_Key table begins with these keys.
keys() { [ "$(on "$1" cat "/sys/class/infiniband/$2/ports/1/pkeys/0" "/sys/class/infiniband/$2/ports/1/pkeys/1" | xargs)" = "$3 $4" ]; }
within 60 keys a vrnic0 0xffff 0x8001 || fail "a has no P_Key of its tenant"
within 60 keys b vrnic0 0x7fff 0x8001 || fail "b has no P_Key of its tenant"
within 60 keys a vrnic1 0x7fff 0x8002 || fail "a has no P_Key of the other tenant"
within 60 keys b vrnic1 0x7fff 0x8002 || fail "b has no P_Key of the other tenant"
for vm in a b; do within 30 event $vm PKEY_CHANGE || fail "no event about the P_Keys: $(on $vm cat /run/events)"; done
# meet DEVICE DEVICE COMMAND: runs a server at a device of VM b and its client at a device of VM a. Succeeds if the
# client does.
meet() {
	local job code=0
	lab_port=$((lab_port + 1))
	on -t 120 b $3 -d "$1" -p $lab_port >"$LAB_DIR/server" 2>&1 &
	job=$!
	within 60 on b sh -c "ss -Hltn sport = :$lab_port | grep -q ." || fail "no server listens: $(cat "$LAB_DIR/server")"
	on -t 120 a $3 -d "$2" -p $lab_port 10.77.0.2 >"$LAB_DIR/client" 2>&1 || code=1
	# The server does not notice if its client fails.
	[ $code = 0 ] || on b pkill -x "${3%% *}" || :
	wait $job || :
	return $code
}
# violations: prints the number of packets that the switch does not forward to the second RNIC of VM b.
port=$(vrnicctl subnet list leaf4-h1 | sed -n 's,^leaf4/\([0-9]*\) .*,\1,p')
violations() { counters a "$(lid leaf4)" "$port" | sed -n 's/^PortXmitConstraintErrors:\.*//p'; }
pingpong="ibv_rc_pingpong -n 20" send="ib_send_bw -n 20 -s 4096 -F --pkey_index=1"
meet vrnic1 vrnic0 "$pingpong" || fail "a limited member does not reach a full one: $(cat "$LAB_DIR/client")"
meet vrnic1 vrnic1 "$send" || fail "members of a tenant do not reach each other: $(cat "$LAB_DIR/client")"
before=$(violations)
! meet vrnic1 vrnic1 "$pingpong" || fail "two limited members reach each other"
found 'transport retry counter exceeded' <"$LAB_DIR/client" ||
	fail "the pingpong fails for another reason: $(cat "$LAB_DIR/client")"
! meet vrnic1 vrnic0 "$send" || fail "a tenant reaches another tenant: $(cat "$LAB_DIR/client")"
[ "$(violations)" -gt "$before" ] || fail "no P_Key violation is counted: $before, then $(violations)"
within 30 on a sh -c 'grep -q "num:259" /var/log/opensm-*.log' || fail "OpenSM gets no trap about the violation"

# Kill the master while a connection of the tenant carries data.
stream --pkey_index=1
flows "of the tenant"
on a pkill -9 -x opensm
flows "without a master"
taken_over() { on b sminfo | found "sm lid $lid_b .*SMINFO_MASTER"; }
within 90 taken_over || fail "no standby subnet manager takes over: $(on b sminfo "$lid_b")"
# knows VM: checks whether the VM's port knows the new master.
knows() { [ "$(on "$1" cat /sys/class/infiniband/vrnic0/ports/1/sm_lid)" = "$(printf '%#x' "$lid_b")" ]; }
within 60 knows a || fail "VM a does not know the new master"
for name in SM_CHANGE CLIENT_REREGISTER; do
	within 30 event a $name || fail "no event $name with the new master: $(on a cat /run/events)"
done
within 60 keys a vrnic0 0x7fff 0x8001 || fail "the new master has different partitions"
path() { on a saquery -p --src-to-dst "$lid_a:$lid_b" | found "dlid\.*$lid_b\$"; }
within 60 path || fail "the new master does not know the path: $(on a saquery -p --src-to-dst "$lid_a:$lid_b")"
flows "with the new master"
reroutes "the new master"
# Now VM a is a limited member of the default partition, as the switches are. They answer a full member.
if on a perfquery -t 500 "$(lid leaf1)" 1 >/dev/null 2>&1; then fail "a limited member reads counters of another one"; fi
counters b "$(lid leaf1)" 1 | found '^# Port' || fail "a full member does not read the counters of a switch"

# OpenSM tells of two HCAs with one GUID, and goes on when one of them is gone.
for twin in twin1 twin2; do vrnicctl subnet link $twin up; done
within 60 on b sh -c 'grep -q "duplicated node GUID" /var/log/opensm-*.log' || fail "OpenSM does not see two HCAs with one GUID"
flows "with two HCAs that have one GUID"
vrnicctl subnet link twin2 down
joined() { on b ibnetdiscover | found '"twin1" lid [1-9]'; }
within 90 joined || fail "OpenSM does not configure the HCA that is left"
vrnicctl subnet link twin1 down
flows "without the twins"
end_stream

# Nobody who lacks the M_Key of a port reads or changes its attributes, and OpenSM is told who tries.
on b ibportstate "$simulated" 1 mkey 0x1234 mkeyprot 2 >/dev/null
for key in 0 0x4321; do
	if on a smpquery -t 500 -y $key portinfo "$simulated" 1 >/dev/null 2>&1; then fail "the M_Key $key reads a port"; fi
	if on a ibportstate -t 500 -y $key "$simulated" 1 lid 301 >/dev/null 2>&1; then fail "the M_Key $key changes a port"; fi
done
on a smpquery -y 0x1234 portinfo "$simulated" 1 >"$LAB_DIR/portinfo" || fail "the M_Key does not open the port"
found "^Lid:\.*$simulated\$" <"$LAB_DIR/portinfo" && found '^MkeyViolations:\.*[1-9]' <"$LAB_DIR/portinfo" ||
	fail "the port does not count wrong M_Keys: $(cat "$LAB_DIR/portinfo")"
within 60 on b sh -c 'grep -q "num:256" /var/log/opensm-*.log' || fail "OpenSM gets no trap about the M_Key"
on a ibportstate -y 0x1234 "$simulated" 1 mkey 0 mkeyprot 0 >/dev/null
on a smpquery portinfo "$simulated" 1 >/dev/null || fail "the port is still protected"

# A new connection, whose path the new master finds.
for vm in a b; do
	address=10.99.0.$([ $vm = a ] && echo 1 || echo 2)
	on $vm sh -ec "modprobe ib_ipoib; ip link set ib0 up; ip addr add $address/24 dev ib0"
done
within 60 on a ping -c 1 -W 2 10.99.0.2 >/dev/null || fail "IPoIB carries no traffic"
on -t 90 b rping -s -a 10.99.0.2 -C 10 -p 18900 >/dev/null &
job=$!
within 60 on b sh -c 'rdma resource show cm_id | grep -q "state LISTEN .*:18900 "' || fail "no server listens"
on -t 90 a rping -c -a 10.99.0.2 -C 10 -V -p 18900 >/dev/null || fail "no new connection with the new master"
wait $job || fail "the server of the new connection fails"

# The tenant's own IP network: its P_Key has the index 1.
for vm in a b; do
	address=10.99.1.$([ $vm = a ] && echo 1 || echo 2)
	on $vm sh -ec "ip link add link ib0 name ib0.8001 type ipoib pkey 0x8001; ip link set ib0.8001 up
		ip addr add $address/24 dev ib0.8001"
done
within 60 on a ping -c 1 -W 2 10.99.1.2 >/dev/null || fail "the tenant's IPoIB carries no traffic"
on a ping -c 5 -i 0.2 -W 5 10.99.1.2 | found ' 0% packet loss' || fail "the tenant's IPoIB loses packets"
on -t 90 b rping -s -a 10.99.1.2 -C 10 -p 18901 >/dev/null &
job=$!
within 60 on b sh -c 'rdma resource show cm_id | grep -q "state LISTEN .*:18901 "' || fail "no server listens"
on -t 90 a rping -c -a 10.99.1.2 -C 10 -V -p 18901 >/dev/null || fail "no connection with the P_Key of the tenant"
wait $job || fail "the server of the connection with the P_Key of the tenant fails"

# A LID that changes.
! event a LID_CHANGE || fail "an event about a LID that has not changed: $(on a cat /run/events)"
on a ibportstate -D 0 1 lid 300 >/dev/null
within 30 event a LID_CHANGE || fail "no event about the LID: $(on a cat /run/events)"
for vm in a b; do on $vm pkill -x ibv_asyncwatch; done
