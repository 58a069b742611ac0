# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Sends and receives raw packets.

    raw.py send DEVICE NETDEV PEER
    raw.py receive DEVICE NETDEV

The receiver has a queue pair with flows for frames to its address and to all, both with one Ethertype. It compares what
the queue pair gets with what the network device gets, which it watches through a packet socket. The sender sends what
belongs to the queue pair, to the network device, to both and, with a forged source, to neither.
"""

import socket
import sys
import time

from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import *
from pyverbs.flow import Flow, FlowAttr
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.spec import EthSpec
from pyverbs.wr import RecvWR, SGE, SendWR

STEERED, OTHER = 0x88B5, 0x88B6
ALL = "ff:ff:ff:ff:ff:ff"
FORGED = "02:00:00:0f:0f:0f"
ROOM = 2048
RECEIVES = 16


def frame(to, source, ether_type, text):
    bytes_of = lambda mac: bytes.fromhex(mac.replace(":", ""))
    return bytes_of(to) + bytes_of(source) + ether_type.to_bytes(2, "big") + text.encode().ljust(46, b".")


def mac_of(netdev):
    with open(f"/sys/class/net/{netdev}/address") as file:
        return file.read().strip()


def queue_pair(device):
    context = Context(name=device)
    pd = PD(context)
    cq = CQ(context, 2 * RECEIVES)
    cap = QPCap(max_send_wr=RECEIVES, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
    init = QPInitAttr(qp_type=IBV_QPT_RAW_PACKET, scq=cq, rcq=cq, cap=cap, sq_sig_all=1)
    qp = QP(pd, init)
    attr = QPAttr(port_num=1)
    attr.qp_state = IBV_QPS_INIT
    qp.modify(attr, IBV_QP_STATE | IBV_QP_PORT)
    for state in IBV_QPS_RTR, IBV_QPS_RTS:
        attr = QPAttr()
        attr.qp_state = state
        qp.modify(attr, IBV_QP_STATE)
    mr = MR(pd, ROOM * RECEIVES, IBV_ACCESS_LOCAL_WRITE)
    return context, pd, cq, qp, mr


def poll(cq, timeout):
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        count, completions = cq.poll(1)
        if count:
            assert completions[0].status == IBV_WC_SUCCESS, completions[0]
            return completions[0]
        time.sleep(0.01)
    return None


def send(device, netdev, peer):
    own = mac_of(netdev)
    _context, _pd, cq, qp, mr = queue_pair(device)
    for to, source, ether_type, text in [
        (peer, own, STEERED, "for the queue pair"),
        (peer, own, OTHER, "for the network device"),
        (ALL, own, STEERED, "for both"),
        (peer, FORGED, STEERED, "forged"),
        (peer, FORGED, OTHER, "forged"),
        (peer, own, STEERED, "last"),
        (peer, own, OTHER, "last"),
    ]:
        data = frame(to, source, ether_type, text)
        mr.write(data, len(data))
        qp.post_send(SendWR(sg=[SGE(mr.buf, len(data), mr.lkey)], num_sge=1, opcode=IBV_WR_SEND))
        assert poll(cq, 20), "the frame is not sent"


def receive(device, netdev):
    own = mac_of(netdev)
    context, pd, cq, qp, mr = queue_pair(device)
    for number in range(RECEIVES):
        sge = SGE(mr.buf + number * ROOM, ROOM, mr.lkey)
        qp.post_recv(RecvWR(wr_id=number, num_sge=1, sg=[sge]))
    flows = []
    for to in own, ALL:
        attr = FlowAttr(num_of_specs=1, port=1)
        attr.specs.append(EthSpec(dst_mac=to, ether_type=STEERED, is_inner=0))
        flows.append(Flow(qp, attr))
    watcher = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    watcher.bind((netdev, 3))
    watcher.settimeout(20)
    print("ready", flush=True)

    text = lambda data: data[14:].decode().rstrip(".\0")
    raw, seen = [], []
    while not raw or raw[-1] != "last":
        done = poll(cq, 30)
        assert done, f"only {raw} came"
        assert done.byte_len == 60 and done.opcode == IBV_WC_RECV, done
        raw.append(text(mr.read(done.byte_len, done.wr_id * ROOM)))
    while not seen or seen[-1] != "last":
        data = watcher.recv(ROOM)
        if int.from_bytes(data[12:14], "big") in (STEERED, OTHER):
            seen.append(text(data))
    assert raw == ["for the queue pair", "for both", "last"], raw
    assert seen == ["for the network device", "for both", "last"], seen
    # Without flows, everything goes to the network device again; a queue pair with flows cannot go away.
    for flow in flows:
        flow.close()
    print("right", flush=True)


{"send": send, "receive": receive}[sys.argv[1]](*sys.argv[2:])
