#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Prints by how many hours the clock of a device and the timestamps of its completions have jumped since the program
started, each time this changes. Usage: clock.py DEVICE.
"""
import sys
import time

import pyverbs.enums as e
from pyverbs.cq import CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR

context = Context(name=sys.argv[1])
pd = PD(context)
mr = MR(pd, 64, e.IBV_ACCESS_LOCAL_WRITE)
cq = CQEX(context, CqInitAttrEx(cqe=16, wc_flags=e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP))
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()))
# The clock counts so many times a second.
frequency = context.query_device_ex().hca_core_clock * 1000


def clock():
    seconds, nanoseconds = context.query_rt_values_ex()
    return seconds + nanoseconds / 1e9


def stamp():
    """Returns the timestamp of a receive that is flushed now."""
    qp.to_init(QPAttr(port_num=1))
    qp.post_recv(RecvWR(num_sge=1, sg=[SGE(mr.buf, 64, mr.lkey)]))
    qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    while cq.start_poll(PollCqAttr()) == 2:
        pass
    ticks = cq.read_timestamp()
    cq.end_poll()
    qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    return ticks / frequency


def offsets():
    return [read() - time.monotonic() for read in (clock, stamp)]


first, shown = offsets(), None
while True:
    now = [round((late - early) / 3600) for early, late in zip(first, offsets())]
    if now != shown:
        print(*now, flush=True)
    shown = now
    time.sleep(0.05)
