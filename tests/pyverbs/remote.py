# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs two programs on two machines with any RDMA devices. Each has a queue pair and a buffer.

    PROGRAM --device NAME --gid INDEX --server
    PROGRAM --device NAME --gid INDEX --client HOST
"""
import argparse
import json
import socket
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.wr import SGE, SendWR

SIZE = 20000
PATIENCE = 60
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
FLUSHES = e.IBV_ACCESS_FLUSH_GLOBAL | e.IBV_ACCESS_FLUSH_PERSISTENT
PATTERN = bytes(index * 7 % 251 for index in range(SIZE))


class End:
    """A connected queue pair with a buffer, and the channel to the other end.

    rights: access rights of the peer. The buffer grants them except for FLUSH to persistence, because its memory is
    volatile. send_ops: operations for the extended interface, if it is used.
    """

    def __init__(self, device, gid, channel, rights, send_ops):
        self.channel = channel
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 64)
        self.mr = MR(self.pd, SIZE, e.IBV_ACCESS_LOCAL_WRITE | rights & ~e.IBV_ACCESS_FLUSH_PERSISTENT)
        queues = dict(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, sq_sig_all=1)
        queues["cap"] = QPCap(max_send_wr=32, max_recv_wr=8)
        if send_ops:
            mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            init = QPInitAttrEx(pd=self.pd, comp_mask=mask, send_ops_flags=send_ops, **queues)
            self.qp = QPEx(self.context, init)
        else:
            self.qp = QP(self.pd, QPInitAttr(**queues))
        # What Soft-RoCE does differently: Documentation/interoperability.rst.
        is_rxe = device.startswith("rxe")
        self.with_inv = e.IBV_WC_IP_CSUM_OK if is_rxe else e.IBV_WC_WITH_INV
        own = self.context.query_gid(1, gid).gid
        peer = self.swap(qpn=self.qp.qp_num, gid=own, is_rxe=is_rxe)
        self.can_flush = is_rxe == peer["is_rxe"]
        attr = QPAttr(port_num=1)
        attr.dest_qp_num = peer["qpn"]
        attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | REMOTE | rights & FLUSHES
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.rq_psn = attr.sq_psn = 0xFFFFF0
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 17, 7, 7, 12
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=gid)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rts(attr)

    def swap(self, **words):
        """Sends a message to the other end, and returns its reply."""
        self.channel.write(json.dumps(words) + "\n")
        self.channel.flush()
        return json.loads(self.channel.readline())

    def part(self, length, start=0):
        """Returns an SGE for a part of the buffer."""
        return SGE(self.mr.buf + start, length, self.mr.lkey)

    def sge(self):
        return self.part(SIZE)

    def completion(self):
        """Returns the next completion."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            count, found = self.cq.poll()
            if count:
                return found[0]
        raise SystemExit("no completion")

    def expect(self, count, status=e.IBV_WC_SUCCESS):
        """Polls the next completions, which must have this status."""
        for _ in range(count):
            found = self.completion()
            if found.status != status:
                raise SystemExit(f"{found.opcode}: status {found.status}, not {status}")

    def do(self, request, status=e.IBV_WC_SUCCESS):
        """Posts a request, whose completion must have this status."""
        self.qp.post_send(request)
        found = self.completion()
        if found.status != status:
            raise SystemExit(f"opcode {request.opcode}: status {found.status}, not {status}")

    def access(self, opcode, address, key, status=e.IBV_WC_SUCCESS):
        request = SendWR(opcode=opcode, num_sge=1, sg=[self.sge()])
        request.set_wr_rdma(key, address)
        self.do(request, status)


def connect(host, port):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def run(serve, use, rights, send_ops=0, server_options=()):
    """Runs the program: calls serve or use with an End. On the server, serve also gets the server's options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--gid", type=int, required=True)
    parser.add_argument("--port", type=int, default=18590)
    for option in server_options:
        parser.add_argument("--" + option)
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument("--server", action="store_true")
    side.add_argument("--client", metavar="HOST")
    args = parser.parse_args()
    if args.server:
        with socket.create_server(("", args.port)) as server:
            peer = server.accept()[0]
    else:
        peer = connect(args.client, args.port)
    end = End(args.device, args.gid, peer.makefile("rw"), rights, send_ops)
    if args.server:
        serve(end, *(getattr(args, option) for option in server_options))
    else:
        use(end)
