# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# OpenSM in a VM brings up a fat tree with 72 HCAs, of which 70 are simulated. Each of them has a LID and answers, and
# two VMs at different leaves reach each other. Links, lanes and the MTU are as the topology says. When switches and
# links fail until a ring is left, vrnicctl shows that OpenSM's routes have a credit loop.
# lab: crowd
# lab: timeout=600
. "$LAB_LIB"

export XDG_RUNTIME_DIR=$LAB_DIR/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
# on VM COMMAND...: runs a command in a VM of this lab, as in other tests.
on() { "$LAB_BIN" exec --lab tree --vm "$1" --timeout 120 -- "${@:2}" </dev/null; }
trap '"$LAB_BIN" down tree >/dev/null || :' EXIT

cat >"$LAB_DIR/tree.toml" <<end
name = "tree"
memory = 768

[[network]]
name = "net"
fabric = "infiniband"

[network.topology]
speed = "qdr"
width = "8x"
mtu = 2048
lanes = 4

[network.topology.fat-tree]
spines = 4
leaves = 8
hosts = 9

[[vm]]
name = "a"
rnic = [{ hca = "leaf1-h1" }]

[[vm]]
name = "b"
rnic = [{ hca = "leaf8-h9" }]
end
"$LAB_BIN" up "$LAB_DIR/tree.toml"

on b ibv_devinfo -v -d vrnic0 >"$LAB_DIR/port"
on b ibstat vrnic0 1 >>"$LAB_DIR/port"
for wanted in 'active_mtu: *2048 (4)' 'max_vl_num: *4 (3)' 'active_width: *8X (4)' 'active_speed: *10.0 Gbps (4)' \
	'link_layer: *InfiniBand' 'Rate: 80'; do
	tr -s '\t ' ' ' <"$LAB_DIR/port" | found "^ *$wanted" || fail "not \"$wanted\" as in the topology: $(cat "$LAB_DIR/port")"
done

on b ibnetdiscover >"$LAB_DIR/net"
grep -c '^Ca' "$LAB_DIR/net" | found -x 72 || fail "ibnetdiscover finds other HCAs: $(cat "$LAB_DIR/net")"
grep -c '^Switch' "$LAB_DIR/net" | found -x 12 || fail "ibnetdiscover finds other switches: $(cat "$LAB_DIR/net")"
# The LIDs of the HCAs, at the switches' ports.
sed -n 's/^\[[0-9]*\].*"H-.*# "leaf[1-8]-h[1-9]" lid \([0-9]*\) .*/\1/p' "$LAB_DIR/net" >"$LAB_DIR/lids"
sort -u "$LAB_DIR/lids" | grep -cv '^0$' | found -x 72 || fail "HCAs without a LID of their own: $(cat "$LAB_DIR/net")"
on a cat /sys/class/infiniband/vrnic0/ports/1/lid >"$LAB_DIR/lid_a"
on b cat /sys/class/infiniband/vrnic0/ports/1/lid >"$LAB_DIR/lid_b"
own=$(printf '%d\n%d\n' "$(cat "$LAB_DIR/lid_a")" "$(cat "$LAB_DIR/lid_b")")
[ "$(grep -cvxF "$own" "$LAB_DIR/lids")" = 70 ] || fail "the VMs have the LIDs $own among $(cat "$LAB_DIR/lids")"
# All nodes answer requests for their counters, which go by LID, and one HCA of each leaf answers pings. Counted errors
# are those of the time when the tables were written.
for vm in a b; do
	on $vm ibqueryerrors >"$LAB_DIR/errors" 2>&1 || :
	found ' 84 nodes checked' <"$LAB_DIR/errors" && ! found failed <"$LAB_DIR/errors" ||
		fail "VM $vm does not reach all nodes: $(cat "$LAB_DIR/errors")"
	for leaf in 1 2 3 4 5 6 7 8; do
		lid=$(sed -n "s/^\[[0-9]*\].*\"H-.*# \"leaf$leaf-h5\" lid \([0-9]*\) .*/\1/p" "$LAB_DIR/net")
		on $vm ibping -c 1 -t 5000 "$lid" | found "^Pong from leaf$leaf-h5" || fail "leaf$leaf-h5 does not answer VM $vm"
	done
done

path=$(on a saquery -p --src-to-dst "$(printf '%d:%d' "$(cat "$LAB_DIR/lid_a")" "$(cat "$LAB_DIR/lid_b")")")
# A path record's code for 80 Gb/s is 9, and that for 2048 bytes is 4. In both, 0x80 means that the value is exact.
found 'rate\.*0x89' <<<"$path" && found 'mtu\.*0x84' <<<"$path" || fail "other rate or MTU in the path record: $path"

pingpong="ibv_rc_pingpong -d vrnic0 -p 18600 -n 100"
on b $pingpong >/dev/null &
job=$!
within 60 on b sh -c 'ss -Hltn sport = :18600 | grep -q .' || fail "no server listens"
on a $pingpong 10.77.0.2 >/dev/null || fail "VM a does not reach VM b"
wait $job || fail "VM b does not reach VM a"

# What is left without the leaves 4 to 7 and half of the other links is a ring: leaf1, spine1, leaf2, spine2, leaf3,
# spine3, leaf8, spine4. The shortest paths around it have a credit loop. Those through the tree do not.
VRNIC_CONTROL=$("$LAB_BIN" ctl --lab tree control)
export VRNIC_CONTROL
nodes="leaf1 leaf2 leaf3 leaf8 spine1 spine2 spine3 spine4"
# is_around SWITCHES: whether these are the switches whose lanes wait for each other.
is_around() {
	vrnicctl subnet loop >"$LAB_DIR/loop" || return
	[ "$(sed -n 's,^\([a-z0-9]*\)/[0-9]*  *[a-z0-9]*/[0-9]*  *0$,\1,p' "$LAB_DIR/loop" | sort | xargs)" = "$1" ]
}
# ring STATE: cuts all other links, or restores them.
ring() {
	local leaf end
	for leaf in 4 5 6 7; do vrnicctl subnet switch leaf$leaf "$1"; done
	for end in leaf1/spine2 leaf1/spine3 leaf2/spine3 leaf2/spine4 leaf3/spine1 leaf3/spine4 leaf8/spine1 leaf8/spine2; do
		leaf=${end%/*}
		vrnicctl subnet link "$(vrnicctl subnet list "$leaf" | sed -n "s,^\($leaf/[0-9]*\) .*${end#*/}/.*,\1,p")" "$1"
	done
}
within 90 is_around "" || fail "a credit loop in a tree: $(vrnicctl subnet loop)"
ring down
within 90 is_around "$nodes" || fail "no credit loop around a ring: $(vrnicctl subnet loop)"
ring up
within 90 is_around "" || fail "the credit loop does not end: $(vrnicctl subnet loop)"
