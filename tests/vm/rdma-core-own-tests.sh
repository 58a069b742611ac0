# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# rdma-core's own tests run in loopback. Each has the outcome that the pinned list says, so no test is skipped by
# accident. rdma-core 65's own tests (newer-rdma-core-own-tests) contain nearly all of them.
# lab: long
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=240
# lab: vrnicd-port addresses = 1
. "$LAB_LIB"

# The frames that the suite makes have a source address of their own, which the port allows here.
differing="--differing /vrnic/tests/pyverbs/raw-packets.tsv"
[ "$FABRIC" != local ] || differing=

# part VM NUMBER: runs half of the tests in a VM. Some need huge pages.
part() {
	on "$1" sysctl -qw vm.nr_hugepages=16
	on -t 230 "$1" python3 /vrnic/tests/pyverbs/inventory.py --device "$DEV" --part "$2/2" \
		--pinned /vrnic/tests/pyverbs/rdma-core-56.tsv $differing
}
at_once 'part a 0' 'part b 1'
