#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests memory placement between two machines with any devices. The client uses WRITE, FLUSH and ATOMIC_WRITE on the
server's memory, which the server checks, and sends requests that must be refused. Usage: see remote.py.
"""
import struct

import pyverbs.enums as e

from remote import PATTERN, REMOTE, SIZE, run

# Written at once, behind what is written as usual.
WORDS = 16
WRITTEN = SIZE - 8 * WORDS - 8


def first_word(address):
    """Returns the first multiple of 8 after the bytes of the WRITE."""
    return (address + WRITTEN + 7) // 8 * 8


def serve(end):
    address = end.mr.buf
    end.swap(address=address, key=end.mr.rkey)
    end.swap()  # it has written
    if end.mr.read(WRITTEN, 0) != PATTERN[:WRITTEN]:
        raise SystemExit("the memory does not have the written data")
    words = end.mr.read(8 * WORDS, first_word(address) - address)
    if struct.unpack(f"<{WORDS}Q", words) != tuple(word << 40 | 7 for word in range(WORDS)):
        raise SystemExit(f"the words are {words.hex()}")
    end.swap()  # it has tried what is refused


def use(end):
    there = end.swap()
    address, key = there["address"], there["key"]
    end.mr.write(PATTERN, SIZE)

    def flush(selectivity):
        if end.can_flush:
            end.qp.wr_flush(key, address, WRITTEN, e.IBV_FLUSH_GLOBAL, selectivity)
        return int(end.can_flush)

    end.qp.wr_start()
    end.qp.wr_flags = e.IBV_SEND_SIGNALED
    end.qp.wr_id = 1
    end.qp.wr_rdma_write(key, address)
    end.qp.wr_set_sge(end.part(WRITTEN))
    flushes = flush(e.IBV_FLUSH_RANGE) + flush(e.IBV_FLUSH_MR)
    end.qp.wr_complete()
    end.expect(1 + flushes)
    # Many at once.
    flushes = 0
    end.qp.wr_start()
    for word in range(WORDS):
        end.qp.wr_atomic_write(key, first_word(address) + 8 * word, struct.pack("<Q", word << 40 | 7))
        if word % 4 == 3:
            flushes += flush(e.IBV_FLUSH_RANGE)
    end.qp.wr_complete()
    end.expect(WORDS + flushes)
    end.swap()
    end.qp.wr_start()
    end.qp.wr_atomic_write(key, first_word(address) + 4, bytes(8))
    end.qp.wr_complete()
    end.expect(1, e.IBV_WC_REM_INV_REQ_ERR)
    end.swap()


run(
    serve,
    use,
    rights=REMOTE | e.IBV_ACCESS_FLUSH_GLOBAL,
    send_ops=e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_FLUSH | e.IBV_QP_EX_WITH_ATOMIC_WRITE,
)
