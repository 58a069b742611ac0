#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A memory window between two machines, of whatever devices: bound by one, written and read through its key by the
other, which then takes the key away by SEND with Invalidate. After that the key opens nothing.

    remote_window.py --device NAME --gid INDEX --server
    remote_window.py --device NAME --gid INDEX --client HOST
"""
import argparse
import json
import socket
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

SIZE = 20000
PATIENCE = 60
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
PATTERN = bytes(index * 7 % 251 for index in range(SIZE))


class End:
    """A connected queue pair with a buffer, and the other end's words."""

    def __init__(self, device, gid, channel):
        self.channel = channel
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 64)
        self.mr = MR(self.pd, SIZE, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)
        cap = QPCap(max_send_wr=8, max_recv_wr=8)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        # Soft-RoCE tells a program what the kernel calls IB_WC_WITH_INVALIDATE: Documentation/interoperability.rst.
        self.with_inv = e.IBV_WC_IP_CSUM_OK if device.startswith("rxe") else e.IBV_WC_WITH_INV
        own = self.context.query_gid(1, gid).gid
        peer = self.swap(qpn=self.qp.qp_num, gid=own)
        attr = QPAttr(port_num=1)
        attr.dest_qp_num = peer["qpn"]
        attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | REMOTE
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.rq_psn = attr.sq_psn = 0xFFFFF0
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 17, 7, 7, 12
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=gid)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rts(attr)

    def swap(self, **words):
        """Tells the other end something, and hears what it says."""
        self.channel.write(json.dumps(words) + "\n")
        self.channel.flush()
        return json.loads(self.channel.readline())

    def sge(self):
        return SGE(self.mr.buf, SIZE, self.mr.lkey)

    def completion(self):
        """The next completion."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            count, found = self.cq.poll()
            if count:
                return found[0]
        raise SystemExit("no completion")

    def do(self, request, status=e.IBV_WC_SUCCESS):
        """Posts a request, whose completion must have that status."""
        self.qp.post_send(request)
        found = self.completion()
        if found.status != status:
            raise SystemExit(f"opcode {request.opcode}: status {found.status}, not {status}")

    def access(self, opcode, address, key, status=e.IBV_WC_SUCCESS):
        request = SendWR(opcode=opcode, num_sge=1, sg=[self.sge()])
        request.set_wr_rdma(key, address)
        self.do(request, status)


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
        raise SystemExit("what was written through the window is not here")
    received = end.completion()
    if received.status != e.IBV_WC_SUCCESS or not received.wc_flags & end.with_inv:
        raise SystemExit(f"the receive has status {received.status}, flags {received.wc_flags}")
    end.swap()  # it has tried again
    if end.mr.read(SIZE, 0) != PATTERN:
        raise SystemExit("an invalidated key still opens the memory")


def use(end):
    there = end.swap()
    address, key = there["address"], there["key"]
    end.mr.write(PATTERN, SIZE)
    end.access(e.IBV_WR_RDMA_WRITE, address, key)
    end.mr.write(bytes(SIZE), SIZE)
    end.access(e.IBV_WR_RDMA_READ, address, key)
    if end.mr.read(SIZE, 0) != PATTERN:
        raise SystemExit("what was read through the window is not what was written")
    invalidate = SendWR(opcode=e.IBV_WR_SEND_WITH_INV)
    invalidate.imm_data = key  # the field is one with the key
    end.do(invalidate)
    end.swap()
    end.mr.write(bytes(SIZE), SIZE)
    end.access(e.IBV_WR_RDMA_WRITE, address, key, e.IBV_WC_REM_ACCESS_ERR)
    end.swap()


def connect(host, port):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--gid", type=int, required=True)
    parser.add_argument("--port", type=int, default=18590)
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument("--server", action="store_true")
    side.add_argument("--client", metavar="HOST")
    args = parser.parse_args()
    if args.server:
        with socket.create_server(("", args.port)) as server:
            peer = server.accept()[0]
    else:
        peer = connect(args.client, args.port)
    end = End(args.device, args.gid, peer.makefile("rw"))
    (serve if args.server else use)(end)
    print("the window opened and closed")


main()
