#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Creates one object of each kind that asynchronous events name, and prints the events. Usage: events.py DEVICE."""
import sys

import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr

context = Context(name=sys.argv[1])
pd = PD(context)
cq = CQ(context, 16)
srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=8)))
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, srq=srq, cap=QPCap()))
print("async event FD", flush=True)
while True:
    event = context.get_async_event()
    print(f"event_type ({event.event_type})", flush=True)
    event.ack()
