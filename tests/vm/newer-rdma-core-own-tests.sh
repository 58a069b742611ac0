# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# rdma-core 65's own tests run in loopback, with its libraries and the provider for private ABI 65. Each has the
# outcome that the pinned list says.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=420
# lab: vrnicd-port addresses = 1
. "$LAB_LIB"

# The frames that the suite makes have a source address of their own, which the port allows here.
differing="--differing /vrnic/tests/pyverbs/raw-packets.tsv"
[ "$FABRIC" != local ] || differing=

on a test -x /vrnic/bin/python3-65 || fail "the setup found no rdma-core 65 (tools/setup/setup.sh userland)"
# part VM NUMBER: runs half of the tests in a VM. Some need huge pages.
part() {
	on "$1" sysctl -qw vm.nr_hugepages=16
	on -t 400 "$1" python3-65 /vrnic/tests/pyverbs/inventory.py --suite /vrnic/userland/lib/rdma-core-tests \
		--device "$DEV" --part "$2/2" --pinned /vrnic/tests/pyverbs/rdma-core-65.tsv $differing
}
at_once 'part a 0' 'part b 1'
