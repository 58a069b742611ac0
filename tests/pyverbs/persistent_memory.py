#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Persistent memory between two machines: one writes to a file of the other that is mapped from an NVDIMM, and flushes
it to where it survives. Usage: remote.py, with --file PATH at the server, a file of at least 20,000 bytes on a file
system mounted with dax. The client reads what to do from its standard input, a line each: `write` to all of the file,
or write and at once flush the `range`, or the `region`, or a flush that is `refused`; it repeats the line when that is
done. With --check, and no device, the program looks whether the file holds what the client writes.
"""
import ctypes
import errno
import mmap
import sys
import time

import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError

from remote import FLUSHES, PATTERN, REMOTE, SIZE, run

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | REMOTE | FLUSHES
FLUSHED = {"range": e.IBV_FLUSH_RANGE, "region": e.IBV_FLUSH_MR, "refused": e.IBV_FLUSH_RANGE}
# Only of files whose pages are memory of their own, with what it takes to find them written to it at once.
MAP_SHARED_VALIDATE, MAP_SYNC = 0x03, 0x80000


def serve(end, path):
    try:
        MR(end.pd, 4096, RIGHTS)
        raise SystemExit("memory that is lost with the machine was taken for persistent")
    except PyverbsRDMAError as error:
        if error.error_code != errno.EINVAL:
            raise
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), SIZE, flags=MAP_SHARED_VALIDATE | MAP_SYNC)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    region = MR(end.pd, SIZE, RIGHTS | e.IBV_ACCESS_ON_DEMAND, address=address)
    end.swap(address=address, key=region.rkey)
    # This machine does nothing any more but wait for its end.
    time.sleep(600)


def use(end):
    there = end.swap()
    address, key = there["address"], there["key"]
    end.mr.write(PATTERN, SIZE)
    how_far = e.IBV_FLUSH_GLOBAL | e.IBV_FLUSH_PERSISTENT
    for step in map(str.strip, sys.stdin):
        end.qp.wr_start()
        end.qp.wr_flags = e.IBV_SEND_SIGNALED
        end.qp.wr_rdma_write(key, address)
        end.qp.wr_set_sge(end.sge())
        if step != "write":
            end.qp.wr_flush(key, address, SIZE, how_far, FLUSHED[step])
        end.qp.wr_complete()
        end.expect(1)
        if step != "write":
            end.expect(1, e.IBV_WC_REM_OP_ERR if step == "refused" else e.IBV_WC_SUCCESS)
        print(step, flush=True)


if sys.argv[1:2] == ["--check"]:
    with open(sys.argv[2], "rb") as file:
        if file.read(SIZE) != PATTERN:
            raise SystemExit("what was flushed is not there")
else:
    send_ops = e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_FLUSH
    run(serve, use, RIGHTS, send_ops, server_options=["file"])
