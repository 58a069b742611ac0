# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The driver of an HCA is unbound under traffic, while IPoIB and a program that serves management datagrams use it.
# Programs get errors. When the driver is bound again, OpenSM brings the port up, and connections and IPoIB work.
# lab: needs CONFIG_INFINIBAND_IPOIB=m
# lab: fabric=infiniband
# lab: timeout=300
# lab: fresh
. "$LAB_LIB"

# ipoib VM: gives the IPoIB interface of a VM its address.
ipoib() {
	local address=IP_$1
	on "$1" sh -ec "ip link set ib0 up; ip addr add 10.99.0.${!address##*.}/24 dev ib0"
}
trap 'for vm in a b; do on $vm modprobe -r ib_ipoib; done' EXIT
for vm in a b; do
	on $vm modprobe ib_ipoib
	ipoib $vm
done
there=10.99.0.${IP_a##*.}
within 30 on b ping -c 1 -W 2 "$there" >/dev/null || fail "IPoIB carries no traffic"
lid=$(on b cat "/sys/class/infiniband/$DEV/ports/1/lid")

write="ib_write_bw -d $DEV -p 18600 -F -D 1 --run_infinitely -u 14"
on -t 200 a $write >/dev/null 2>&1 &
server=$!
listening a 18600
on -t 200 b $write "$IP_a" >"$LAB_DIR/client" 2>&1 &
client=$!
on -t 200 b ibping -S >"$LAB_DIR/pings" 2>&1 &
pings=$!
received() { on a cat "/sys/class/infiniband/$DEV/ports/1/hw_counters/rx_bytes"; }
moving() { [ "$(received)" -gt 1000000 ]; }
within 60 moving || fail "no traffic: $(cat "$LAB_DIR/client")"
answers() { on a ibping -c 1 -t 1000 "$((lid))" | found '^Pong'; }
within 30 answers || fail "the server for pings does not answer: $(cat "$LAB_DIR/pings")"

virtio=$(bound b)
driver b unbind "$virtio"
on b sh -c "test ! -e /sys/class/infiniband/$DEV && test ! -e /sys/class/net/ib0" || fail "the device is still there"
! wait $client || fail "the connection continued without a device: $(cat "$LAB_DIR/client")"
! answers || fail "a program answers without a device"
for vm in a b; do on $vm pkill -x "ib_write_bw|ibping" || :; done
wait $server || :
wait $pings || :

driver b bind "$virtio"
active b
[ "$(on b cat "/sys/class/infiniband/$DEV/ports/1/lid")" = "$lid" ] || fail "the port has another LID than before"
within 30 on b test -e /sys/class/net/ib0 || fail "IPoIB does not come back"
ipoib b
within 60 on b ping -c 1 -W 2 "$there" >/dev/null || fail "IPoIB carries no traffic any more"
pair a b 18601 "ibv_rc_pingpong -c -n 100 -d $DEV -p 18601" "ibv_rc_pingpong -c -n 100 -d $DEV -p 18601 $IP_a"
