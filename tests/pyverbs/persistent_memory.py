#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests persistent memory between two machines: the client writes to a file of the server, which is mapped from an
NVDIMM, and flushes it to persistence. Usage: see remote.py. The server needs --file PATH, a file of at least 20,000
bytes on a file system that is mounted with dax. The client reads steps from its standard input, one per line: `write`
writes to the whole file; `range` and `region` write and then flush the range or the region; `refused` sends a flush
that must be refused. It prints the line when the step is done. With --check, and without a device, the program checks
that the file has the data that the client writes.
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
# Only files on DAX can be mapped with MAP_SYNC: what is needed to find a page is stored before the page is written.
MAP_SHARED_VALIDATE, MAP_SYNC = 0x03, 0x80000


def serve(end, path):
    try:
        MR(end.pd, 4096, RIGHTS)
        raise SystemExit("a region of volatile memory was registered as persistent")
    except PyverbsRDMAError as error:
        if error.error_code != errno.EINVAL:
            raise
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), SIZE, flags=MAP_SHARED_VALIDATE | MAP_SYNC)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    region = MR(end.pd, SIZE, RIGHTS | e.IBV_ACCESS_ON_DEMAND, address=address)
    end.swap(address=address, key=region.rkey)
    # From here on, this machine only waits to be killed.
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
            raise SystemExit("the file does not have the flushed data")
else:
    send_ops = e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_FLUSH
    run(serve, use, RIGHTS, send_ops, server_options=["file"])
