#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests each verb of programs while the kernel runs out of memory.

Each of the kernel's allocations in a verb fails once: first the first one, then the second, until all succeed. A verb
that fails must return ENOMEM, or ENOBUFS if it called the network stack, and must have changed nothing. Destroyed
objects must be gone even if an allocation fails, and so must the objects of a process that exits.

failed_allocations.py --device NAME --gid INDEX
"""
import argparse
import contextlib
import ctypes
import fcntl
import gc
import itertools
import mmap
import os
import struct
import subprocess
import time

import pyverbs.enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from pyverbs.device import Context
from pyverbs.mr import MR, MW, DmaBufMR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE

from injection import Injection
from libibverbs import GROUP, Datagrams

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_MW_BIND
SIZE = 1 << 20
CAPS = dict(max_send_wr=100, max_recv_wr=100, max_send_sge=4, max_recv_sge=4)
KINDS = {"UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD, "RC": e.IBV_QPT_RC}
# All states of a queue pair in order, with the attributes that each transition needs.
STEPS = {
    "INIT": (e.IBV_QPS_INIT, e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS),
    "RTR": (
        e.IBV_QPS_RTR, e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER,
    ),
    "RTS": (
        e.IBV_QPS_RTS, e.IBV_QP_SQ_PSN | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY
        | e.IBV_QP_MAX_QP_RD_ATOMIC,
    ),
    "SQD": (e.IBV_QPS_SQD, 0),
    "ERR": (e.IBV_QPS_ERR, 0),
    "RESET": (e.IBV_QPS_RESET, 0),
}
# UDMABUF_CREATE
UDMABUF_CREATE = 1 << 30 | 24 << 16 | ord("u") << 8 | 0x42


class Objects:
    """Creates objects of each kind in a context. The context itself has one of each."""

    def __init__(self, device, gid):
        self.device = device
        self.context = self.open()
        own = GID(self.context.query_gid(1, gid).gid)
        self.route = dict(port_num=1, is_global=1, gr=GlobalRoute(dgid=own, sgid_index=gid))
        self.dma_buf = dma_buf(SIZE)
        # Written to, so that no page of it is missing later.
        self.memory = mmap.mmap(-1, SIZE)
        self.memory.write(bytes(SIZE))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.pd = self.protection()
        self.channel = CompChannel(self.context)
        self.cq = self.queue()
        self.srq = self.shared()

    def open(self):
        return Context(name=self.device)

    def close(self):
        for thing in (self.srq, self.cq, self.channel, self.pd, self.context):
            thing.close()
        os.close(self.dma_buf)

    def protection(self):
        return PD(self.context)

    def region(self):
        return MR(self.pd, SIZE, RIGHTS, address=self.address)

    def region_on_demand(self):
        return MR(self.pd, SIZE, RIGHTS | e.IBV_ACCESS_ON_DEMAND, address=self.address)

    def region_of_dma_buf(self):
        return DmaBufMR(self.pd, SIZE, e.IBV_ACCESS_LOCAL_WRITE, dmabuf=self.dma_buf)

    def window(self):
        return MW(self.pd, e.IBV_MW_TYPE_1)

    def window_2(self):
        return MW(self.pd, e.IBV_MW_TYPE_2)

    def queue(self):
        return CQ(self.context, 1000, None, self.channel)

    def extended_queue(self):
        return CQEX(self.context, CqInitAttrEx(cqe=1000, wc_flags=e.IBV_WC_EX_WITH_BYTE_LEN))

    def shared(self):
        return SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=300, max_sge=4)))

    def pair(self, kind, srq=None):
        return QP(self.pd, QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, srq=srq, cap=QPCap(**CAPS)))

    def handle(self):
        return AH(self.pd, attr=AHAttr(**self.route))

    def attributes(self, qp):
        """Returns the attributes of a queue pair that is connected to itself."""
        attr = QPAttr(port_num=1)
        attr.dest_qp_num, attr.path_mtu = qp.qp_num, e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 17, 7, 7, 12
        attr.ah_attr = AHAttr(**self.route)
        return attr

    def makers(self):
        """Returns a function for each kind, which creates an object of this kind."""
        return {
            "PD": self.protection,
            "MR": self.region,
            "MR on demand": self.region_on_demand,
            "MR of a dma-buf": self.region_of_dma_buf,
            "MW, type 1": self.window,
            "MW, type 2": self.window_2,
            "channel": lambda: CompChannel(self.context),
            "CQ": self.queue,
            "extended CQ": self.extended_queue,
            "SRQ": self.shared,
            **{f"QP, {name}": lambda kind=kind: self.pair(kind) for name, kind in KINDS.items()},
            "QP with SRQ": lambda: self.pair(e.IBV_QPT_RC, self.srq),
            "AH": self.handle,
        }


def dma_buf(size):
    """Returns the descriptor of a dma-buf of this process's own memory."""
    memory = os.memfd_create("dma-buf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with open("/dev/udmabuf", "r+b", buffering=0) as device:
        made = fcntl.ioctl(device, UDMABUF_CREATE, bytearray(struct.pack("IIQQ", memory, 1, 0, size)))
    os.close(memory)
    return made


def queries(fail, objects, gid):
    context, srq = objects.context, objects.srq
    fail.verb("query device", lambda: context.query_device_ex())
    fail.verb("query port", lambda: context.query_port(1))
    fail.verb("query GID", lambda: context.query_gid_ex(1, gid))
    fail.verb("query pkey", lambda: context.query_pkey(1, 0), tells=False)
    fail.verb("query SRQ", lambda: srq.query())


def regions(fail, objects):
    mr = objects.region()
    other = objects.protection()
    change_pd, change_access = e.IBV_REREG_MR_CHANGE_PD, e.IBV_REREG_MR_CHANGE_ACCESS
    move = e.IBV_REREG_MR_CHANGE_TRANSLATION
    pds = itertools.cycle((other, objects.pd))
    changes = {
        "PD and access": lambda: mr.rereg(change_pd | change_access, next(pds), 0, 0, e.IBV_ACCESS_LOCAL_WRITE),
        "memory": lambda: mr.rereg(move, None, objects.address, SIZE // 2, 0),
        "everything": lambda: mr.rereg(change_pd | change_access | move, next(pds), objects.address, SIZE, RIGHTS),
    }
    for name, change in changes.items():
        fail.verb(f"reregister MR, {name}", change)
    mr.close()
    other.close()

    paged = objects.region_on_demand()
    everything = [SGE(objects.address, SIZE, paged.lkey)]
    for name in ("", "_NO_FAULT", "_WRITE"):
        advice = getattr(e, f"_IBV_ADVISE_MR_ADVICE_PREFETCH{name}")
        fail.verb(
            f"prefetch{name.lower()}", lambda: objects.pd.advise_mr(advice, e._IBV_ADVISE_MR_FLAG_FLUSH, everything)
        )
    paged.close()


def completion_queues(fail, objects):
    cq = objects.cq
    fail.verb("arm CQ", lambda: cq.req_notify())
    sizes = itertools.cycle((3000, 1000))
    fail.verb("resize CQ", lambda: cq.resize(next(sizes)))


def shared_receive_queues(fail, objects):
    srq = objects.srq
    fail.verb("limit SRQ", lambda: srq.modify(SrqAttr(srq_limit=7), e.IBV_SRQ_LIMIT))
    fail.verb("resize SRQ", lambda: srq.modify(SrqAttr(max_wr=900), e.IBV_SRQ_MAX_WR))


def states(fail, objects):
    qp = objects.pair(e.IBV_QPT_RC)
    attr = objects.attributes(qp)

    def go(name):
        attr.qp_state, mask = STEPS[name]
        qp.modify(attr, e.IBV_QP_STATE | mask)

    def follow(path):
        for name in path:
            go(name)

    def expect(name, when):
        state = qp.query(e.IBV_QP_STATE)[0].qp_state
        if state != STEPS[name][0]:
            raise SystemExit(f"QP is in state {state}, not {name}, {when}")

    path = ["RESET"]
    for name in STEPS:
        fail.verb(
            f"modify QP to {name}",
            lambda: go(name),
            before=lambda: follow(path),
            undo=lambda _: expect(name, "although it was modified"),
            refused=lambda: expect(path[-1], f"although it was not modified to {name}"),
        )
        expect(name, "after the last call")
        path.append(name)
    fail.verb("query QP", lambda: qp.query(e.IBV_QP_STATE))
    qp.close()


def datagrams(fail, objects):
    """Tests the other verbs of a queue pair for datagrams, and of its completion queue."""
    pair = Datagrams(objects.device)
    fail.verb("attach to a group", lambda: pair.attach(GROUP), undo=lambda _: pair.detach(GROUP))
    fail.verb("detach from a group", lambda: pair.detach(GROUP), undo=lambda _: pair.attach(GROUP))
    fail.verb("moderate CQ", lambda: pair.moderate(8, 100))
    pair.close()


def imports(fail, objects):
    """Imports objects of a context into another context of the same file."""
    original = objects.region()

    def context():
        descriptor = os.dup(objects.context.cmd_fd)
        try:
            return Context(cmd_fd=descriptor)
        except Exception:
            # Depending on where it failed, the library has closed the descriptor or not.
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise

    def done(thing):
        thing.unimport()
        thing.close()

    imported = fail.make("import context", context, tells=False)
    pd = fail.verb("import PD", lambda: PD(imported, handle=objects.pd.handle), undo=done)
    mr = fail.verb("import MR", lambda: MR(pd, handle=original.handle), undo=done)
    for thing in (mr, pd):
        done(thing)
    imported.close()
    original.close()


@contextlib.contextmanager
def counted(device):
    """Binds all queue pairs to counters by their type, as soon as they have a port."""
    link = f"{device}/1"
    subprocess.run(["rdma", "statistic", "qp", "set", "link", link, "auto", "type", "on"], check=True)
    try:
        yield
    finally:
        subprocess.run(["rdma", "statistic", "qp", "set", "link", link, "auto", "off"], check=True)


def counters(fail, objects):
    def ready():
        qp = objects.pair(e.IBV_QPT_UC)
        attr = objects.attributes(qp)
        attr.qp_state, mask = STEPS["INIT"]
        qp.modify(attr, e.IBV_QP_STATE | mask)
        return qp

    def read():
        # The kernel caches counters for 10 ms.
        time.sleep(0.05)
        return os.pread(values, 100, 0)

    values = os.open(f"/sys/class/infiniband/{objects.device}/ports/1/hw_counters/tx_bytes", os.O_RDONLY)
    with counted(objects.device):
        fail.make("create QP with counter", ready).close()
        fail.destroy("QP with counter", ready)
        qp = ready()
        show = ["rdma", "-j", "statistic", "qp", "show", "link", f"{objects.device}/1"]
        if "cntn" not in subprocess.run(show, check=True, capture_output=True, text=True).stdout:
            raise SystemExit("the queue pair has no counter")
        fail.verb("read counters", read, tells=False)
        qp.close()
    os.close(values)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--gid", type=int, required=True)
    args = parser.parse_args()
    gc.disable()
    fail = Injection()

    objects = Objects(args.device, args.gid)
    fail.make("open", objects.open, tells=False).close()
    makers = objects.makers()
    for name, make in makers.items():
        fail.make(f"create {name}", make).close()
    queries(fail, objects, args.gid)
    for part in (regions, completion_queues, shared_receive_queues, states, datagrams, imports, counters):
        part(fail, objects)
    for name, make in makers.items():
        fail.destroy(name, make)
    fail.destroy("context", objects.open)
    objects.close()

    def live():
        everything = Objects(args.device, args.gid)
        datagrams = Datagrams(args.device)
        datagrams.attach(GROUP)
        return everything, [make() for make in everything.makers().values()], datagrams

    fail.die("process", live)
    print(f"{fail.failures} allocations failed")


main()
