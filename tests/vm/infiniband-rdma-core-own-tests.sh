# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# rdma-core 65's own tests run in loopback on an InfiniBand subnet, those of librdmacm with the addresses of IPoIB. Each
# has the outcome that the pinned list says, or the list of what differs on InfiniBand. By default, only the tests run
# whose subject is an address, a path or a queue pair. newer-rdma-core-own-tests runs all of them on the fabric local.
# lab: needs CONFIG_INFINIBAND_IPOIB=m
# lab: fabric=infiniband
# lab: timeout=420
. "$LAB_LIB"

on a test -x /vrnic/bin/python3-65 || fail "the setup found no rdma-core 65 (tools/setup/setup.sh userland)"
trap 'for vm in a b; do on $vm modprobe -r ib_ipoib; done' EXIT
for vm in a b; do
	address=IP_$vm
	on $vm sh -ec "modprobe ib_ipoib; ip link set ib0 up; ip addr add 10.99.0.${!address##*.}/24 dev ib0"
done
within 30 on b ping -c 1 -W 2 "10.99.0.${IP_a##*.}" >/dev/null || fail "IPoIB carries no traffic"

modules=test_addr,test_qp,test_rdmacm
! thorough || modules=
# part VM NUMBER: runs half of the tests in a VM. Some need huge pages.
part() {
	on "$1" sysctl -qw vm.nr_hugepages=16
	on -t 400 "$1" python3-65 /vrnic/tests/pyverbs/inventory.py --suite /vrnic/userland/lib/rdma-core-tests \
		--device "$DEV" --part "$2/2" --pinned /vrnic/tests/pyverbs/rdma-core-65.tsv \
		--differing /vrnic/tests/pyverbs/infiniband.tsv ${modules:+--modules $modules}
}
at_once 'part a 0' 'part b 1'
