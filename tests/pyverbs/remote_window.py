#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests a memory window between two machines with any devices. The server binds it. The client writes and reads through
its key, then invalidates the key by SEND with Invalidate. After that, the key must be refused. Usage: see remote.py.
"""
import pyverbs.enums as e
from pyverbs.mr import MW, MWBindInfo
from pyverbs.wr import RecvWR, SendWR

from remote import PATTERN, REMOTE, SIZE, run


def serve(end):
    window = MW(end.pd, e.IBV_MW_TYPE_2)
    bind = SendWR(opcode=e.IBV_WR_BIND_MW)
    bind.set_bind_wr(window, MWBindInfo(end.mr, end.mr.buf, SIZE, REMOTE))
    key = bind.rkey
    end.do(bind)
    end.qp.post_recv(RecvWR(num_sge=1, sg=[end.sge()]))
    end.swap(address=end.mr.buf, key=key)
    end.swap()  # it has written
    if end.mr.read(SIZE, 0) != PATTERN:
        raise SystemExit("the memory does not have the data written through the window")
    received = end.completion()
    if received.status != e.IBV_WC_SUCCESS or not received.wc_flags & end.with_inv:
        raise SystemExit(f"the receive has status {received.status}, flags {received.wc_flags}")
    end.swap()  # it has tried again
    if end.mr.read(SIZE, 0) != PATTERN:
        raise SystemExit("an invalidated key still gives access to the memory")


def use(end):
    there = end.swap()
    address, key = there["address"], there["key"]
    end.mr.write(PATTERN, SIZE)
    end.access(e.IBV_WR_RDMA_WRITE, address, key)
    end.mr.write(bytes(SIZE), SIZE)
    end.access(e.IBV_WR_RDMA_READ, address, key)
    if end.mr.read(SIZE, 0) != PATTERN:
        raise SystemExit("the data read through the window differs from the data written")
    invalidate = SendWR(opcode=e.IBV_WR_SEND_WITH_INV)
    invalidate.imm_data = key  # the field is one with the key
    end.do(invalidate)
    end.swap()
    end.mr.write(bytes(SIZE), SIZE)
    end.access(e.IBV_WR_RDMA_WRITE, address, key, e.IBV_WC_REM_ACCESS_ERR)
    end.swap()


run(serve, use, rights=e.IBV_ACCESS_MW_BIND)
