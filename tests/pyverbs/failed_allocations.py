#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Every verb in a kernel that is out of memory: each of the kernel's allocations in a verb fails once, the first, then
the second, until the verb gets all it asks for. A verb that fails says ENOMEM, or ENOBUFS if it asked the network, and
has done nothing; what is destroyed is gone whatever fails.

failed_allocations.py --device NAME --gid INDEX       needs a kernel with FAILSLAB (VRNIC_KERNEL=debug)
"""
import argparse
import errno
import gc
import os
import pathlib

import pyverbs.enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr

FAIL_NTH = "/proc/thread-self/fail-nth"
DEBUGFS = pathlib.Path("/sys/kernel/debug")
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_MW_BIND
# More allocations than any verb has.
MANY = 2000


class Injection:
    """Makes one of this thread's next allocations fail."""

    def __init__(self):
        for kind in ("failslab", "fail_page_alloc"):
            knobs = DEBUGFS / kind
            (knobs / "verbose").write_text("0")
            (knobs / "ignore-gfp-wait").write_text("N")
        (DEBUGFS / "fail_page_alloc" / "min-order").write_text("0")
        self.writer = os.open(FAIL_NTH, os.O_WRONLY)
        self.failures = 0

    def arm(self, number):
        # The file knows no seeking: one is read once. It is opened now, since that allocates.
        self.reader = os.open(FAIL_NTH, os.O_RDONLY)
        os.write(self.writer, b"%d" % number)

    def disarm(self):
        """Whether an allocation has failed since it was armed."""
        left = os.read(self.reader, 16)
        os.write(self.writer, b"0")
        os.close(self.reader)
        return int(left.strip(b"\0\n")) == 0

    def verb(self, name, call, undo=None, tells=True):
        """Calls until nothing has failed in a call; undo takes back what a call has done despite a failure. What does not
        tell has an error, but the library forgets which.
        """
        refused = 0
        for number in range(1, MANY):
            result = error = None
            self.arm(number)
            try:
                result = call()
            except PyverbsError as caught:
                error = caught
            except MemoryError as caught:
                # Of Python itself, which asks the kernel for memory now and then.
                error = caught
            fired = self.disarm()
            if not fired:
                if error:
                    raise SystemExit(f"{name}: {error}, though allocation {number} did not fail")
                print(f"{name}: {number - 1} allocations, {refused} of them needed", flush=True)
                return result
            self.failures += 1
            if error:
                refused += 1
                code = getattr(error, "error_code", errno.ENOMEM)
                if tells and abs(code) not in (errno.ENOMEM, errno.ENOBUFS):
                    raise SystemExit(f"{name}: {error}, when allocation {number} failed")
            elif undo:
                undo(result)
        raise SystemExit(f"{name}: more than {MANY} allocations")

    def make(self, name, call, tells=True):
        """The same for what makes an object. Objects made despite a failure are destroyed."""
        return self.verb(name, call, lambda made: made.close(), tells)

    def destroy(self, name, make):
        """Destroys objects. None may survive."""
        for number in range(1, MANY):
            victim = make()
            self.arm(number)
            try:
                victim.close()
            except PyverbsError as error:
                self.disarm()
                raise SystemExit(f"{name} stays: {error}, when allocation {number} failed") from error
            if not self.disarm():
                print(f"{name}: gone, {number - 1} allocations", flush=True)
                return
            self.failures += 1
        raise SystemExit(f"{name}: more than {MANY} allocations")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--gid", type=int, required=True)
    args = parser.parse_args()
    gc.disable()
    fail = Injection()

    opened = lambda: Context(name=args.device)
    context = fail.make("open", opened, tells=False)
    fail.verb("query device", lambda: context.query_device_ex())
    fail.verb("query port", lambda: context.query_port(1))
    fail.verb("query GID", lambda: context.query_gid_ex(1, args.gid))
    protection = lambda: PD(context)
    pd = fail.make("allocate PD", protection)
    region = lambda: MR(pd, 1 << 20, RIGHTS)
    mr = fail.make("register MR", region)
    other = PD(context)
    flags = e.IBV_REREG_MR_CHANGE_PD | e.IBV_REREG_MR_CHANGE_ACCESS
    fail.verb("reregister MR", lambda: mr.rereg(flags, other, 0, 0, e.IBV_ACCESS_LOCAL_WRITE))
    windows = [lambda kind=kind: MW(pd, kind) for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2)]
    window = fail.make("allocate MW, type 1", windows[0])
    window = fail.make("allocate MW, type 2", windows[1])
    channel = fail.make("create channel", lambda: CompChannel(context))
    queue = lambda: CQ(context, 1000, None, channel)
    cq = fail.make("create CQ", queue)
    fail.verb("arm CQ", lambda: cq.req_notify())
    shared = lambda: SRQ(pd, SrqInitAttr(SrqAttr(max_wr=300, max_sge=4)))
    srq = fail.make("create SRQ", shared)
    fail.verb("query SRQ", lambda: srq.query())
    fail.verb("limit SRQ", lambda: srq.modify(SrqAttr(srq_limit=7), e.IBV_SRQ_LIMIT))
    fail.verb("resize SRQ", lambda: srq.modify(SrqAttr(max_wr=900), e.IBV_SRQ_MAX_WR))

    caps = QPCap(max_send_wr=100, max_recv_wr=100, max_send_sge=4, max_recv_sge=4)
    pair = lambda kind: QP(pd, QPInitAttr(qp_type=kind, scq=cq, rcq=cq, cap=caps))
    for kind, name in ((e.IBV_QPT_UC, "UC"), (e.IBV_QPT_UD, "UD"), (e.IBV_QPT_RC, "RC")):
        fail.make(f"create QP, {name}", lambda: pair(kind)).close()
    fail.make("create QP with SRQ", lambda: QP(pd, QPInitAttr(scq=cq, rcq=cq, srq=srq, cap=caps))).close()
    attr = QPAttr(port_num=1)
    qp = pair(e.IBV_QPT_RC)
    attr.dest_qp_num, attr.path_mtu = qp.qp_num, e.IBV_MTU_1024
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 17, 7, 7, 12
    own = GID(context.query_gid(1, args.gid).gid)
    route = lambda: AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=own, sgid_index=args.gid))
    attr.ah_attr = route()
    fail.verb("modify QP to INIT", lambda: qp.to_init(attr))
    for name, state, step in (("RTR", e.IBV_QPS_RTR, qp.to_rtr), ("RTS", e.IBV_QPS_RTS, qp.to_rts)):
        # A step includes those before, of which each has its failures: from the beginning, each time.
        def again(step=step):
            qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
            step(attr)

        fail.verb(f"modify QP to {name}", again)
        reached = qp.query(e.IBV_QP_STATE)[0].qp_state
        if reached != state:
            raise SystemExit(f"the queue pair is in state {reached}, not {state}")
    fail.verb("query QP", lambda: qp.query(e.IBV_QP_STATE))
    handle = lambda: AH(pd, attr=route())
    ah = fail.make("create AH", handle)

    unused = lambda kind: (lambda: pair(kind))
    for name, make in (
        ("AH", handle), ("QP", unused(e.IBV_QPT_RC)), ("datagram QP", unused(e.IBV_QPT_UD)), ("SRQ", shared),
        ("CQ", queue), ("MW", windows[1]), ("MR", region), ("PD", protection), ("context", opened),
    ):
        fail.destroy(name, make)
    for thing in (ah, qp, srq, cq, channel, window, mr, other, pd, context):
        thing.close()
    print(f"{fail.failures} allocations failed")


main()
