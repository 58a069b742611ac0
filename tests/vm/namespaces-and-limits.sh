# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The RNIC works in a network namespace of its own, under the limits of a control group, and for a user whose only
# rights are to open the device and to lock some memory.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=600
# Linux's method that opens a device for a process leaks the process when the driver or the control group refuses it
# (uverbs_std_types_device.c, UVERBS_METHOD_GET_CONTEXT, frees the context without rdma_restrack_put()).
# lab: allow-kernel-leak dup_task_struct|copy_signal|prepare_creds|alloc_task_exec_state
. "$LAB_LIB"

# as_nobody KIB COMMAND...: runs a command without any capability, with this limit for locked memory.
as_nobody() {
	local kib=$1
	shift
	on -t 60 a prlimit --memlock=$((kib * 1024)) \
		setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
}

# DEVICE context|cq|mr TRIES SIZE: prints how often a process can open the device again after the first time, or how
# many completion queues or regions of this size it can create, and the errno of the attempt that fails.
create='
import sys, pyverbs.enums as e
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
kind, tries, size = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
context = Context(name=sys.argv[1])
pd = PD(context)
made = []
try:
    while len(made) < tries:
        if kind == "context":
            made.append(Context(name=sys.argv[1]))
        elif kind == "cq":
            made.append(CQ(context, 8))
        else:
            made.append(MR(pd, size, e.IBV_ACCESS_LOCAL_WRITE))
    print(len(made), "none")
except PyverbsRDMAError as error:
    print(len(made), error.error_code)
'

# A user who may not open the device's file cannot use the device.
on a sh -c 'chmod 600 /dev/infiniband/uverbs*'
! as_nobody 65536 ibv_devinfo -d "$DEV" || fail "the device opens without the right to open its file"
on a sh -c 'chmod 666 /dev/infiniband/uverbs*'
as_nobody 65536 vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 3 --qps 2 --max-size 65536
# Registered memory counts as locked: 40 regions of 1 MiB exceed the limit of 8 MiB.
read -r made error < <(as_nobody 8192 python3 -c "$create" "$DEV" mr 40 1048576)
[ "$made" -ge 4 ] && [ "$made" -le 8 ] && [ "$error" = 12 ] || fail "$made regions under a limit of 8 MiB, then error $error"

# A control group limits the number of objects, and all of them are returned afterwards.
on a sh -c "mkdir -p /run/cgroup && mount -t cgroup2 none /run/cgroup && cd /run/cgroup &&
	echo +rdma >cgroup.subtree_control && mkdir few && echo '$DEV hca_handle=2 hca_object=12' >few/rdma.max"
in_group() { on -t 60 a sh -c 'echo $$ >/run/cgroup/few/cgroup.procs; exec "$@"' sh "$@"; }
read -r made error < <(in_group python3 -c "$create" "$DEV" cq 40 0)
# A protection domain and eleven completion queues.
[ "$made $error" = "11 11" ] || fail "$made completion queues in the control group, then error $error"
# The kernel destroys what a process leaves behind with some delay.
all_back() { on a cat /run/cgroup/few/rdma.current | found "^$DEV hca_handle=0 hca_object=0 *\$"; }
within 40 all_back || fail "the control group still counts: $(on a cat /run/cgroup/few/rdma.current)"
# The device can be opened twice, but not three times.
read -r made error < <(in_group python3 -c "$create" "$DEV" context 40 0)
[ "$made $error" = "1 11" ] || fail "$made more opens in the control group, then error $error"
within 40 all_back || fail "the control group still counts the opened devices: $(on a cat /run/cgroup/few/rdma.current)"
in_group ibv_devinfo -d "$DEV" >/dev/null

# In exclusive mode, the device is in only one namespace. If its network device is there, it works.
on a rdma system set netns exclusive
on a ip netns add apart
on a ip link set "$NETDEV" netns apart
on a rdma dev set "$DEV" netns apart
! on a ibv_devinfo -d "$DEV" || fail "the device is visible in two namespaces"
apart() { on -t 60 a ip netns exec apart "$@"; }
apart ip link set lo up
apart ip address add "$IP_a/24" dev "$NETDEV"
apart ip link set "$NETDEV" up
within 40 apart sh -c "ibv_devinfo -v -d $DEV | grep -q '::ffff:$IP_a'" || fail "no GID in the namespace"
within 40 apart sh -c "ibv_devinfo -d $DEV | grep -q PORT_ACTIVE" || fail "the port is not active in the namespace"
apart vrnic-stress --device "$DEV" --seconds 2
# The other VM does not notice in which namespace its peer is.
on -t 60 b vrnic-stress --device "$DEV" --gid "$GID_INDEX" --server --seconds 2 --max-size 65536 &
server=$!
apart vrnic-stress --device "$DEV" --client "$IP_b" --seconds 2 --max-size 65536
wait $server || fail "the server of the stress test failed"

# The same holds for the kernel's own queue pairs, whichever end starts the connection.
pair b a 18801 "rping -s -a $IP_b -p 18801 -C 10 -v" "ip netns exec apart rping -c -a $IP_b -p 18801 -C 10 -V"
apart rping -s -a "$IP_a" -p 18802 -C 10 -v >/dev/null &
server=$!
within 40 apart sh -c "rdma resource show cm_id | grep -q 'state LISTEN .*:18802 '" ||
	fail "no server listens in the namespace"
on -t 60 b rping -c -a "$IP_a" -p 18802 -C 10 -V >/dev/null || fail "rping to the namespace"
wait $server || fail "rping in the namespace"

# When the namespace is destroyed, the device returns.
on a ip netns del apart
within 40 on a sh -c "ibv_devinfo -d $DEV >/dev/null 2>&1" || fail "the device did not return to the first namespace"
on a rdma system set netns shared
