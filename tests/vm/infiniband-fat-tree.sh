# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# OpenSM in a VM brings up a fat tree with 72 HCAs, of which 70 are simulated. Each of them has a LID and answers, and
# two VMs at different leaves reach each other.
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

pingpong="ibv_rc_pingpong -d vrnic0 -p 18600 -n 100"
on b $pingpong >/dev/null &
job=$!
within 60 on b sh -c 'ss -Hltn sport = :18600 | grep -q .' || fail "no server listens"
on a $pingpong 10.77.0.2 >/dev/null || fail "VM a does not reach VM b"
wait $job || fail "VM b does not reach VM a"
