# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Sends and receives raw packets.

    raw.py send DEVICE NETDEV PEER
    raw.py receive DEVICE NETDEV
    raw.py send-kinds DEVICE NETDEV PEER
    raw.py receive-kinds DEVICE NETDEV
    raw.py send-scaled DEVICE NETDEV PEER
    raw.py receive-scaled DEVICE NETDEV
    raw.py send-tunnels DEVICE NETDEV PEER
    raw.py receive-tunnels DEVICE NETDEV
    raw.py queue-in-error DEVICE
    raw.py queue-that-fails DEVICE

The receiver has a queue pair with flows for frames to its address and to all, both with one Ethertype. It compares what
the queue pair gets with what the network device gets, which it watches through a packet socket. The sender sends what
belongs to the queue pair, to the network device, to both and, with a forged source, to neither. It also sends IP
packets with wrong checksums to a group. The device fills them in on request, and the receiver's device checks those of
IPv4. It also divides TCP packets to the group, and the receiver puts them together.

Two other programs are about kinds of flows: two with different priorities, one that leaves its frames to others as
well, and those for what no other flow takes. Another queue pair gets a frame without its VLAN tag, but with its check
sequence.

Two more are about receive scaling: packets of many flows are spread over several work queues, as the hash of each says,
and in order. They have their check sequences. Before that, the receiver does with queues and tables what it must not.

Two more are about flows that look into tunnels, tag the completions of their frames, or drop them. Before that, the
receiver asks for flows that cannot be.

The last two have a work queue and no peer. The queue flushes its receives in error, until it is reset. Or it waits for
the event of a queue that fails, which somebody else has to cause.
"""

import contextlib
import ctypes
import errno
import socket
import struct
import sys
import time
import zlib

from pyverbs.cq import CQ, CQEX, CqInitAttrEx
from pyverbs.device import Context
from pyverbs.enums import *
from pyverbs.flow import Flow, FlowAttr
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.spec import EthSpec, Ipv4ExtSpec, TcpUdpSpec
from pyverbs.wq import RwqIndTable, RwqIndTableInitAttr, RxHashConf, WQ, WQAttr, WQInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

STEERED, OTHER = 0x88B5, 0x88B6
PREFERRED, SHARED, UNKNOWN, TAGGED = 0x88B7, 0x88B8, 0x88B9, 0x88BA
TAG = 0x6123
INSIDE, DROPPED, BRIDGED = 0x88BB, 0x88BC, 0x6558
UDP, GRE = 17, 47
IPV4, IPV6 = 0x0800, 0x86DD
ALL = "ff:ff:ff:ff:ff:ff"
GROUP = "03:00:00:00:00:09"
FORGED = "02:00:00:0f:0f:0f"
ROOM = 2048
RECEIVES = 32
TCP_HEADER = 32
CWR, ACK, PSH, FIN = 0x80, 0x10, 0x08, 0x01
FIRST_ID, FIRST_SEQUENCE = 0xFFFE, 0xFFFFFF00
# Segment size and length of the TCP packets that the device divides.
SEGMENTS = {IPV4: (1400, 5000), IPV6: (1000, 2500)}
# Receive scaling: packets of each flow, flows, queues, and the key of Microsoft's examples.
TURNS, FLOWS, QUEUES = 3, 16, 4
KEY = list(
    bytes.fromhex("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa")
)
CONTENT = bytes((at * 7 >> 3) & 0xFF for at in range(5000))


def frame(to, source, ether_type, text):
    bytes_of = lambda mac: bytes.fromhex(mac.replace(":", ""))
    content = packet(ether_type, text.encode()) if ether_type in (IPV4, IPV6) else text.encode().ljust(46, b".")
    return bytes_of(to) + bytes_of(source) + ether_type.to_bytes(2, "big") + content


def packet(ether_type, text):
    """Returns an IP packet with UDP. All its checksums are wrong."""
    length = (8 + len(text)).to_bytes(2, "big")
    udp = bytes.fromhex("03e803e9") + length + b"\x12\x34" + text
    if ether_type == IPV6:
        return bytes.fromhex("60000000") + length + bytes.fromhex("1140") + b"\xfd\x01" * 8 + b"\xfd\x02" * 8 + udp
    total = (20 + len(udp)).to_bytes(2, "big")
    return b"\x45\0" + total + bytes.fromhex("0001000040115678c0000201c0000202") + udp


def tcp_header(source, ether_type):
    """Returns the header of a TCP packet to the group, without lengths and checksums."""
    bytes_of = lambda mac: bytes.fromhex(mac.replace(":", ""))
    tcp = bytes.fromhex("03e803e9") + FIRST_SEQUENCE.to_bytes(4, "big") + bytes(4)
    tcp += bytes([TCP_HEADER // 4 << 4, CWR | ACK | PSH | FIN]) + bytes.fromhex("200000000000") + b"\1" * 12
    if ether_type == IPV6:
        ip = bytes.fromhex("6000000000000640") + b"\xfd\x01" * 8 + b"\xfd\x02" * 8
    else:
        ip = b"\x45\0\0\0" + FIRST_ID.to_bytes(2, "big") + bytes.fromhex("400040060000c0000201c0000202")
    return bytes_of(GROUP) + bytes_of(source) + ether_type.to_bytes(2, "big") + ip + tcp


def is_tcp(ether_type, data):
    return ether_type in SEGMENTS and data[9 if ether_type == IPV4 else 6] == 6


def segment(ether_type, data):
    """Returns what differs between the packets that were one: identification, offset, flags and payload."""
    start, addresses = (20, data[12:20]) if ether_type == IPV4 else (40, data[8:40])
    length = int.from_bytes(data[2:4], "big") if ether_type == IPV4 else 40 + int.from_bytes(data[4:6], "big")
    tcp = data[start:]
    assert length == len(data), (length, len(data))
    assert not checksum(addresses + b"\0\6" + len(tcp).to_bytes(2, "big") + tcp), "a wrong checksum of TCP"
    assert ether_type == IPV6 or not checksum(data[:20]), "a wrong checksum of IPv4"
    number = int.from_bytes(data[4:6], "big") if ether_type == IPV4 else None
    offset = (int.from_bytes(tcp[4:8], "big") - FIRST_SEQUENCE) & 0xFFFFFFFF
    return number, offset, tcp[13], tcp[TCP_HEADER:]


def expected_segments(ether_type):
    size, length = SEGMENTS[ether_type]
    starts = range(0, length, size)
    for index, start in enumerate(starts):
        number = (FIRST_ID + index) & 0xFFFF if ether_type == IPV4 else None
        flags = ACK | (CWR if index == 0 else 0) | (PSH | FIN if start == starts[-1] else 0)
        yield number, start, flags, CONTENT[start : min(start + size, length)]


def checksum(data):
    """Returns the Internet checksum of bytes, which is 0 if they contain their own."""
    total = sum(int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def checksums(data):
    """Returns the text of an IP packet of ours, and whether its checksums are right."""
    addresses, start = (data[12:20], 20) if data[0] >> 4 == 4 else (data[8:40], 40)
    udp = data[start:]
    right = not checksum(addresses + b"\0\x11" + len(udp).to_bytes(2, "big") + udp)
    if start == 20:
        right = right and not checksum(data[:20])
    return udp[8:].decode(), right


def mac_of(netdev):
    with open(f"/sys/class/net/{netdev}/address") as file:
        return file.read().strip()


def queue_pair(device, flags=0, wc_flags=0):
    context = Context(name=device)
    pd = PD(context)
    if flags & IBV_QP_CREATE_CVLAN_STRIPPING:
        wc_flags = IBV_WC_EX_WITH_CVLAN
    if wc_flags:
        cq = CQEX(context, CqInitAttrEx(cqe=2 * RECEIVES, wc_flags=IBV_WC_STANDARD_FLAGS | wc_flags))
    else:
        cq = CQ(context, 2 * RECEIVES)
    cap = QPCap(max_send_wr=RECEIVES, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
    mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
    mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS
    init = QPInitAttrEx(
        qp_type=IBV_QPT_RAW_PACKET,
        scq=cq,
        rcq=cq,
        cap=cap,
        pd=pd,
        sq_sig_all=1,
        comp_mask=mask,
        send_ops_flags=IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
        max_tso_header=14 + 40 + TCP_HEADER,
        create_flags=flags,
    )
    try:
        qp = QPEx(context, init)
    except PyverbsRDMAError:
        # The garbage collector would end these objects in any order.
        context.close()
        raise
    attr = QPAttr(port_num=1)
    attr.qp_state = IBV_QPS_INIT
    qp.modify(attr, IBV_QP_STATE | IBV_QP_PORT)
    for state in IBV_QPS_RTR, IBV_QPS_RTS:
        attr = QPAttr()
        attr.qp_state = state
        qp.modify(attr, IBV_QP_STATE)
    mr = MR(pd, ROOM * RECEIVES, IBV_ACCESS_LOCAL_WRITE)
    return context, pd, cq, qp, mr


def post_segments(qp, mr, header, size, length):
    """Sends the beginning of the region in segments."""
    buffer = ctypes.create_string_buffer(header, len(header))
    qp.wr_start()
    qp.wr_id = 1
    qp.wr_flags = IBV_SEND_SIGNALED
    qp.wr_send_tso(ctypes.addressof(buffer), len(header), size)
    qp.wr_set_sge(SGE(mr.buf, length, mr.lkey))
    qp.wr_complete()


def poll(cq, timeout, status=IBV_WC_SUCCESS):
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        count, completions = cq.poll(1)
        if count:
            assert completions[0].status == status, completions[0]
            return completions[0]
        time.sleep(0.01)
    return None


def send(device, netdev, peer):
    own = mac_of(netdev)
    context, _pd, cq, qp, mr = queue_pair(device)
    assert context.query_device().device_cap_flags & IBV_DEVICE_RAW_IP_CSUM, "no checksums"
    assert context.query_device_ex().raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM, "no checksums"
    caps = context.query_device_ex().tso_caps
    assert caps.max_tso >= 65536 and caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET, "no segmentation"
    for ether_type, (size, length) in SEGMENTS.items():
        mr.write(CONTENT[:length], length)
        post_segments(qp, mr, tcp_header(own, ether_type), size, length)
        done = poll(cq, 20)
        assert done and done.opcode == IBV_WC_TSO, done
    for to, source, ether_type, text in [
        (peer, own, STEERED, "for the queue pair"),
        (peer, own, OTHER, "for the network device"),
        (ALL, own, STEERED, "for both"),
        (peer, FORGED, STEERED, "forged"),
        (peer, FORGED, OTHER, "forged"),
        (GROUP, own, IPV4, "as it is"),
        (GROUP, own, IPV4, "filled in"),
        (GROUP, own, IPV6, "as it is"),
        (GROUP, own, IPV6, "filled in"),
        # What has no checksums is sent as it is.
        (ALL, own, STEERED, "filled in"),
        (peer, own, STEERED, "last"),
        (peer, own, OTHER, "last"),
    ]:
        transmit(cq, qp, mr, frame(to, source, ether_type, text), IBV_SEND_IP_CSUM if text == "filled in" else 0)
    # What is not a header of TCP is refused.
    header = tcp_header(own, IPV4)
    udp = header[:23] + b"\x11" + header[24:]
    post_segments(qp, mr, udp, 1000, 2000)
    assert poll(cq, 20, IBV_WC_LOC_QP_OP_ERR), "UDP is not refused"


def transmit(cq, qp, mr, data, flags):
    mr.write(data, len(data))
    sge = SGE(mr.buf, len(data), mr.lkey)
    qp.post_send(SendWR(sg=[sge], num_sge=1, opcode=IBV_WR_SEND, send_flags=IBV_SEND_SIGNALED | flags))
    assert poll(cq, 20), "the frame is not sent"


def text_of(data):
    return data[14:].decode().rstrip(".\0")


def post_receive(qp, mr, number):
    qp.post_recv(RecvWR(wr_id=number, num_sge=1, sg=[SGE(mr.buf + number * ROOM, ROOM, mr.lkey)]))


def watch(netdev):
    watcher = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    watcher.bind((netdev, 3))
    watcher.settimeout(20)
    return watcher


def receive(device, netdev):
    own = mac_of(netdev)
    context, pd, cq, qp, mr = queue_pair(device)
    for number in range(RECEIVES):
        post_receive(qp, mr, number)
    flows = []
    for to, ether_type in (own, STEERED), (ALL, STEERED), (GROUP, IPV4), (GROUP, IPV6):
        attr = FlowAttr(num_of_specs=1, port=1)
        attr.specs.append(EthSpec(dst_mac=to, ether_type=ether_type, is_inner=0))
        flows.append(Flow(qp, attr))
    watcher = watch(netdev)
    print("ready", flush=True)

    raw, seen, packets, segments = [], [], [], {IPV4: [], IPV6: []}
    while not raw or raw[-1] != "last":
        done = poll(cq, 30)
        assert done, f"only {raw} came"
        assert done.opcode == IBV_WC_RECV, done
        data = mr.read(done.byte_len, done.wr_id * ROOM)
        ok = bool(done.wc_flags & IBV_WC_IP_CSUM_OK)
        ether_type = int.from_bytes(data[12:14], "big")
        if is_tcp(ether_type, data[14:]):
            assert ok == (ether_type == IPV4), done
            segments[ether_type].append(segment(ether_type, data[14:]))
        elif ether_type in (IPV4, IPV6):
            packets.append((ether_type, *checksums(data[14:]), ok))
        else:
            assert len(data) == 60 and not ok, done
            raw.append(text_of(data))
    while not seen or seen[-1] != "last":
        data = watcher.recv(ROOM)
        if int.from_bytes(data[12:14], "big") in (STEERED, OTHER):
            seen.append(text_of(data))
    assert raw == ["for the queue pair", "for both", "filled in", "last"], raw
    assert seen == ["for the network device", "for both", "filled in", "last"], seen
    # Each with whether its checksums are right, and whether the device says so.
    assert packets == [
        (IPV4, "as it is", False, False),
        (IPV4, "filled in", True, True),
        (IPV6, "as it is", False, False),
        (IPV6, "filled in", True, False),
    ], packets
    for ether_type, got in segments.items():
        assert got == list(expected_segments(ether_type)), got
    # Without flows, everything goes to the network device again; a queue pair with flows cannot go away.
    for flow in flows:
        flow.close()
    print("right", flush=True)


def send_kinds(device, netdev, peer):
    own = mac_of(netdev)
    _context, _pd, cq, qp, mr = queue_pair(device)
    for to, ether_type, text in [
        (peer, PREFERRED, "preferred"),
        (peer, TAGGED, "tagged"),
        (peer, SHARED, "shared"),
        (peer, UNKNOWN, "unknown"),
        (ALL, UNKNOWN, "unknown to all"),
        (peer, UNKNOWN, "last"),
    ]:
        data = frame(to, own, ether_type, text)
        transmit(cq, qp, mr, tagged(data) if ether_type == TAGGED else data, 0)


def tagged(data):
    return data[:12] + b"\x81\0" + TAG.to_bytes(2, "big") + data[12:]


def take_tagged(own, cq, mr):
    """Takes a frame that was tagged, and whose tag is in the completion."""
    end = time.monotonic() + 30
    while cq.start_poll(None):
        assert time.monotonic() < end, "the tagged frame does not come"
        time.sleep(0.01)
    number, length = cq.wr_id, cq.read_byte_len()
    assert cq.status == IBV_WC_SUCCESS and cq.read_cvlan() == TAG, (cq.status, cq.read_cvlan())
    cq.end_poll()
    data = mr.read(length, number * ROOM)
    assert data[:6].hex(":") == own and data[12:14] == TAGGED.to_bytes(2, "big"), data
    assert text_of(data[:-4]) == "tagged", data
    check = zlib.crc32(tagged(data[:-4]))
    assert data[-4:] == check.to_bytes(4, "little"), (data, check)


def receive_kinds(device, netdev):
    own = mac_of(netdev)
    caps = Context(name=device).query_device_ex().raw_packet_caps
    assert caps & IBV_RAW_PACKET_CAP_CVLAN_STRIPPING and caps & IBV_RAW_PACKET_CAP_SCATTER_FCS, caps
    with refused(errno.EOPNOTSUPP):
        queue_pair(device, IBV_QP_CREATE_PCI_WRITE_END_PADDING)
    ends = {name: queue_pair(device) for name in ("second", "first", "rest", "groups")}
    ends["tagged"] = queue_pair(device, IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_SCATTER_FCS)
    for _context, _pd, _cq, qp, mr in ends.values():
        for number in range(RECEIVES):
            post_receive(qp, mr, number)
    flows = []
    for name, ether_type, priority, flags in [
        ("second", PREFERRED, 1, 0),
        ("first", PREFERRED, 0, 0),
        ("first", SHARED, 0, IBV_FLOW_ATTR_FLAGS_DONT_TRAP),
        ("tagged", TAGGED, 0, 0),
    ]:
        attr = FlowAttr(num_of_specs=1, priority=priority, port=1, flags=flags)
        attr.specs.append(EthSpec(dst_mac=own, ether_type=ether_type, is_inner=0))
        flows.append(Flow(ends[name][3], attr))
    for name, flow_type in ("rest", IBV_FLOW_ATTR_ALL_DEFAULT), ("groups", IBV_FLOW_ATTR_MC_DEFAULT):
        flows.append(Flow(ends[name][3], FlowAttr(flow_type=flow_type, port=1)))
    watcher = watch(netdev)
    print("ready", flush=True)

    ours = lambda data: int.from_bytes(data[12:14], "big") in (PREFERRED, SHARED, UNKNOWN)
    got = {name: [] for name in ends}

    def take(name, timeout):
        """Takes a frame, which may be another one of the network, and returns whether there was one."""
        _context, _pd, cq, qp, mr = ends[name]
        done = poll(cq, timeout)
        if done:
            data = mr.read(done.byte_len, done.wr_id * ROOM)
            post_receive(qp, mr, done.wr_id)
            if ours(data):
                got[name].append(text_of(data))
        return done

    while got["rest"][-1:] != ["last"]:
        assert take("rest", 30), f"only {got} came"
    for name in "second", "first", "groups":
        while take(name, 1):
            pass
    _context, _pd, cq, _qp, mr = ends["tagged"]
    take_tagged(own, cq, mr)
    seen = []
    while seen[-1:] != ["last"]:
        data = watcher.recv(ROOM)
        if ours(data):
            seen.append(text_of(data))
    assert got == {
        "second": [],
        "first": ["preferred", "shared"],
        "rest": ["shared", "unknown", "unknown to all", "last"],
        "groups": ["unknown to all"],
        "tagged": [],
    }, got
    assert seen == ["shared", "unknown", "unknown to all", "last"], seen
    for flow in flows:
        flow.close()
    print("right", flush=True)


class RawSpec:
    """A specification that pyverbs does not know."""

    def __init__(self, kind, body=b""):
        # The fields of all of these are aligned to 4 bytes.
        self.size = 8 + len(body)
        self.bytes = struct.pack("=IHxx", kind, self.size) + body

    def _copy_data(self, address):
        ctypes.memmove(address, self.bytes, self.size)


def vxlan_spec(vni):
    return RawSpec(IBV_FLOW_SPEC_VXLAN_TUNNEL, struct.pack(">II", vni, 0xFFFFFF))


def gre_spec(key, flags_mask=0):
    return RawSpec(IBV_FLOW_SPEC_GRE, struct.pack(">HHIHHI", 0, BRIDGED, key, flags_mask, 0xFFFF, 0xFFFFFFFF))


def mpls_spec(label):
    return RawSpec(IBV_FLOW_SPEC_MPLS, struct.pack(">II", label << 12, 0xFFFFF000))


def tag_spec(tag):
    return RawSpec(IBV_FLOW_SPEC_ACTION_TAG, struct.pack("=I", tag))


def drop_spec():
    return RawSpec(IBV_FLOW_SPEC_ACTION_DROP)


def ipv4(protocol, payload):
    """Returns a packet. Its checksums are wrong."""
    total = (20 + len(payload)).to_bytes(2, "big")
    rest = bytes.fromhex("5678c0000201c0000202")
    return b"\x45\0" + total + bytes.fromhex("0001000040") + bytes([protocol]) + rest + payload


def in_vxlan(vni, inner):
    header = b"\x08\0\0\0" + vni.to_bytes(3, "big") + b"\0"
    return ipv4(UDP, b"\xc0\0" + struct.pack(">HHH", 4789, 16 + len(inner), 0) + header + inner)


def in_gre(key, inner):
    return ipv4(GRE, struct.pack(">HHI", 1 << 13, BRIDGED, key) + inner)


def in_mpls(label, inner):
    stack = struct.pack(">II", label << 12 | 64, 16 << 12 | 1 << 8 | 64)
    return ipv4(UDP, b"\xc0\0" + struct.pack(">HHH", 6635, 16 + len(inner), 0) + stack + inner)


def send_tunnels(device, netdev, peer):
    own = mac_of(netdev)
    _context, _pd, cq, qp, mr = queue_pair(device)
    inner = lambda ether_type, text: frame(GROUP, own, ether_type, text)
    outer = frame(peer, own, IPV4, "")[:14]
    for data in [
        outer + in_vxlan(5, inner(INSIDE, "in VXLAN")),
        outer + in_vxlan(6, inner(INSIDE, "in another network")),
        outer + in_vxlan(9, inner(STEERED, "in any tunnel")),
        outer + in_gre(7, inner(INSIDE, "in GRE")),
        outer + in_gre(8, inner(INSIDE, "with another key")),
        outer + in_mpls(100, ipv4(UDP, b"\0\x50\0\x51" + b"in MPLS".ljust(46, b"."))),
        outer + in_mpls(100, ipv4(UDP, b"\0\x50\0\x52" + b"to another port".ljust(46, b"."))),
        frame(peer, own, DROPPED, "dropped"),
        frame(ALL, own, DROPPED, "dropped for all"),
        frame(peer, own, STEERED, "last"),
        frame(peer, own, OTHER, "last"),
    ]:
        transmit(cq, qp, mr, data, 0)


def receive_tunnels(device, netdev):
    own = mac_of(netdev)
    context, pd, cq, qp, mr = queue_pair(device, wc_flags=IBV_WC_EX_WITH_FLOW_TAG)
    for number in range(RECEIVES):
        post_receive(qp, mr, number)

    def flow(*specs, flow_type=IBV_FLOW_ATTR_NORMAL, priority=0):
        attr = FlowAttr(num_of_specs=len(specs), flow_type=flow_type, priority=priority, port=1)
        attr.specs.extend(specs)
        return Flow(qp, attr)

    to_own = EthSpec(dst_mac=own, is_inner=0)
    steered = EthSpec(dst_mac=own, ether_type=STEERED, is_inner=0)
    inside = EthSpec(ether_type=INSIDE, is_inner=1)
    udp = TcpUdpSpec(IBV_FLOW_SPEC_UDP, dst_port=6635)
    flows = [
        # The last tag counts. A drop needs none, and has nothing from it.
        flow(to_own, vxlan_spec(5), inside, tag_spec(1), tag_spec(0xABCDEF)),
        flow(EthSpec(dst_mac=own, ether_type=DROPPED, is_inner=0), drop_spec(), tag_spec(3)),
        flow(EthSpec(dst_mac=ALL, ether_type=DROPPED, is_inner=0), drop_spec()),
        # Of any tunnel.
        flow(EthSpec(ether_type=STEERED, is_inner=1), tag_spec(4)),
        flow(to_own, gre_spec(7), tag_spec(5)),
        # In front of UDP, a label stack is one behind the Ethernet header.
        flow(to_own, mpls_spec(100), udp, tag_spec(6)),
        flow(udp, mpls_spec(100), TcpUdpSpec(IBV_FLOW_SPEC_UDP, dst_port=0x51, is_inner=True), tag_spec(7)),
        flow(steered),
    ]
    for error, specs in [
        (errno.EINVAL, [steered, tag_spec(1 << 24)]),
        # Equal flows with other actions.
        (errno.EEXIST, [steered, tag_spec(8)]),
        (errno.EEXIST, [steered, drop_spec()]),
        (errno.EEXIST, [to_own, vxlan_spec(5), inside, tag_spec(1)]),
        (errno.EINVAL, [gre_spec(7), TcpUdpSpec(IBV_FLOW_SPEC_UDP)]),
        (errno.EINVAL, [gre_spec(7), Ipv4ExtSpec(proto=UDP)]),
        (errno.EOPNOTSUPP, [gre_spec(7, flags_mask=1 << 13)]),
        (errno.EINVAL, [RawSpec(IBV_FLOW_SPEC_GRE | IBV_FLOW_SPEC_INNER, bytes(16))]),
    ]:
        with refused(error):
            flow(*specs)
    for action in tag_spec(1), drop_spec():
        with refused(errno.EINVAL):
            flow(action, flow_type=IBV_FLOW_ATTR_ALL_DEFAULT)
    flow(steered, tag_spec(8), priority=1).close()
    watcher = watch(netdev)
    print("ready", flush=True)

    words = lambda data: bytes(data).rstrip(b".\0").decode(errors="ignore")
    texts = ["in VXLAN", "in another network", "in any tunnel", "in GRE", "with another key", "in MPLS"]
    texts += ["to another port", "dropped for all", "dropped", "last"]
    text = lambda data: next((text for text in texts if words(data).endswith(text)), None)
    got, seen = [], []
    end = time.monotonic() + 60
    while not got or got[-1][0] != "last":
        if cq.start_poll(None):
            assert time.monotonic() < end, f"only {got} came"
            time.sleep(0.01)
            continue
        assert cq.status == IBV_WC_SUCCESS, cq.status
        number, length, tag = cq.wr_id, cq.read_byte_len(), cq.read_flow_tag()
        cq.end_poll()
        got.append((text(mr.read(length, number * ROOM)), tag))
    while seen[-1:] != ["last"]:
        data = watcher.recv(ROOM)
        if text(data):
            seen.append(text(data))
    assert got == [
        ("in VXLAN", 0xABCDEF),
        ("in any tunnel", 4),
        ("in GRE", 5),
        ("in MPLS", 7),
        ("last", 0),
    ], got
    assert seen == ["in another network", "with another key", "to another port", "last"], seen
    # pyverbs crashes if its garbage collector ends the context first.
    for one in [*flows, qp, cq, mr, pd, context]:
        one.close()
    print("right", flush=True)


def flow_packet(flow, turn):
    """Returns a packet of UDP over IPv4, which is unlike those of other flows and turns."""
    udp = (1000 + flow).to_bytes(2, "big") + bytes.fromhex("12b8000a0000") + bytes([flow, turn])
    header = b"\x45\0" + (20 + len(udp)).to_bytes(2, "big") + bytes.fromhex("0001000040110000c0000201c0000202")
    return header + udp


def toeplitz(data):
    """Returns the hash that chooses the queue."""
    key = int.from_bytes(bytes(KEY), "big")
    bits = int.from_bytes(data, "big")
    value = 0
    for at in range(8 * len(data)):
        if bits >> (8 * len(data) - 1 - at) & 1:
            value ^= key >> (8 * len(KEY) - 32 - at) & 0xFFFFFFFF
    return value


@contextlib.contextmanager
def refused(error):
    """Expects this error."""
    try:
        yield
    except PyverbsRDMAError as raised:
        assert raised.error_code == error, raised
    else:
        raise AssertionError(f"expected {errno.errorcode[error]}")


def send_scaled(device, netdev, peer):
    own = mac_of(netdev)
    _context, _pd, cq, qp, mr = queue_pair(device)
    for turn in range(TURNS):
        for flow in range(FLOWS):
            header = frame(peer, own, IPV4, "")[:14]
            transmit(cq, qp, mr, (header + flow_packet(flow, turn)).ljust(60, b"\0"), 0)


def change(queue, state, believed=None):
    """Changes the state of a work queue, which may be believed to be in another one."""
    mask = IBV_WQ_ATTR_STATE if believed is None else IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE
    queue.modify(WQAttr(attr_mask=mask, wq_state=state, curr_wq_state=believed or 0))


@contextlib.contextmanager
def work_queue(device):
    context = Context(name=device)
    pd = PD(context)
    mr = MR(pd, RECEIVES * ROOM, IBV_ACCESS_LOCAL_WRITE)
    cq = CQ(context, 2 * RECEIVES)
    queue = WQ(context, WQInitAttr(wq_pd=pd, wq_cq=cq, max_wr=RECEIVES, max_sge=1))
    yield context, cq, queue, lambda number: post_receive(queue, mr, number)
    queue.close()


def queue_in_error(device):
    with work_queue(device) as (_context, cq, queue, post):

        def flushed(numbers):
            for number in numbers:
                done = poll(cq, 20, IBV_WC_WR_FLUSH_ERR)
                assert done and (done.wr_id, done.qp_num) == (number, queue.wqn), (number, done)
            assert not poll(cq, 0.2), "too many completions"

        with refused(errno.EINVAL):
            post(0)
        change(queue, IBV_WQS_RDY)
        for number in range(RECEIVES):
            post(number)
        with refused(errno.ENOMEM):
            post(RECEIVES)
        # Who believes that the queue is in error is wrong.
        with refused(errno.EINVAL):
            change(queue, IBV_WQS_ERR, believed=IBV_WQS_ERR)
        assert not poll(cq, 0.2), "the queue is flushed"
        # In error, everything is flushed, also what is posted then.
        change(queue, IBV_WQS_ERR)
        flushed(range(RECEIVES))
        for number in range(3):
            post(number)
            flushed([number])
        change(queue, IBV_WQS_ERR)
        change(queue, IBV_WQS_ERR, believed=IBV_WQS_ERR)
        with refused(errno.EINVAL):
            change(queue, IBV_WQS_RDY)
        # After a reset, a post that was too late does not fail the queue.
        change(queue, IBV_WQS_RESET)
        with refused(errno.EINVAL):
            change(queue, IBV_WQS_ERR, believed=IBV_WQS_ERR)
        with refused(errno.EINVAL):
            post(0)
        change(queue, IBV_WQS_RDY)
        with refused(errno.EINVAL):
            change(queue, IBV_WQS_ERR, believed=IBV_WQS_ERR)
        post(0)
        assert not poll(cq, 0.2), "the queue is in error"
    print("right", flush=True)


def queue_that_fails(device):
    with work_queue(device) as (context, cq, queue, post):
        change(queue, IBV_WQS_RDY)
        post(7)
        print("queue", queue.wqn, flush=True)
        event = context.get_async_event()
        assert event.event_type == IBV_EVENT_WQ_FATAL, event
        event.ack()
        done = poll(cq, 20, IBV_WC_WR_FLUSH_ERR)
        assert done and done.wr_id == 7, done
    print("right", flush=True)


def receive_scaled(device, netdev):
    own = mac_of(netdev)
    context = Context(name=device)
    caps = context.query_device_ex().rss_caps
    assert caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET and caps.max_rwq_indirection_table_size >= QUEUES, caps
    assert caps.rx_hash_function == IBV_RX_HASH_FUNC_TOEPLITZ and caps.rx_hash_fields_mask == 0xFF, caps
    pd = PD(context)
    mr = MR(pd, QUEUES * RECEIVES * ROOM, IBV_ACCESS_LOCAL_WRITE)
    cqs = [CQ(context, 2 * RECEIVES) for _ in range(QUEUES)]
    checked = {"comp_mask": IBV_WQ_INIT_ATTR_FLAGS, "create_flags": IBV_WQ_FLAGS_SCATTER_FCS}
    queues = [WQ(context, WQInitAttr(wq_pd=pd, wq_cq=cq, max_wr=RECEIVES, max_sge=1, **checked)) for cq in cqs]

    def post(index, number):
        sge = SGE(mr.buf + (index * RECEIVES + number) * ROOM, ROOM, mr.lkey)
        queues[index].post_recv(RecvWR(number, 1, [sge]))

    for index, queue in enumerate(queues):
        change(queue, IBV_WQS_RDY)
        for number in range(RECEIVES):
            post(index, number)
    too_many = caps.max_rwq_indirection_table_size.bit_length()
    with refused(errno.EINVAL):
        RwqIndTable(context, RwqIndTableInitAttr(too_many, queues * ((1 << too_many) // QUEUES)))
    table = RwqIndTable(context, RwqIndTableInitAttr(QUEUES.bit_length() - 1, queues))
    fields = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP

    def scaled(function=IBV_RX_HASH_FUNC_TOEPLITZ, key=KEY, fields=fields, qp_type=IBV_QPT_RAW_PACKET):
        conf = RxHashConf(function, len(key), key, fields)
        mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE
        return QPEx(context, QPInitAttrEx(qp_type=qp_type, comp_mask=mask, pd=pd, hash_conf=conf, ind_table=table))

    for error, wrong in [
        (errno.EOPNOTSUPP, {"function": 2}),
        (errno.EINVAL, {"key": KEY[:39]}),
        (errno.EINVAL, {"fields": 0}),
        (errno.EINVAL, {"fields": fields | IBV_RX_HASH_SRC_IPV6}),
        (errno.EINVAL, {"fields": fields | IBV_RX_HASH_SRC_PORT_TCP}),
        (errno.EOPNOTSUPP, {"fields": 1 << 8}),
        (errno.EINVAL, {"qp_type": IBV_QPT_UD}),
    ]:
        with refused(error):
            scaled(**wrong)
    qp = scaled()
    attr = QPAttr(port_num=1)
    attr.qp_state = IBV_QPS_INIT
    with refused(errno.EOPNOTSUPP):
        qp.modify(attr, IBV_QP_STATE | IBV_QP_PORT)
    with refused(errno.EINVAL):
        qp.post_recv(RecvWR(1, 1, [SGE(mr.buf, ROOM, mr.lkey)]))
    attr = FlowAttr(num_of_specs=1, port=1)
    attr.specs.append(EthSpec(dst_mac=own, ether_type=IPV4, is_inner=0))
    flow = Flow(qp, attr)
    print("ready", flush=True)

    got = {}
    end = time.monotonic() + 60
    while sum(map(len, got.values())) < TURNS * FLOWS:
        assert time.monotonic() < end, f"only {got} came"
        for index, cq in enumerate(cqs):
            count, completions = cq.poll(1)
            if not count:
                continue
            [done] = completions
            assert done.status == IBV_WC_SUCCESS and done.qp_num == queues[index].wqn, done
            data = mr.read(done.byte_len, (index * RECEIVES + done.wr_id) * ROOM)
            post(index, done.wr_id)
            assert data[-4:] == zlib.crc32(data[:-4]).to_bytes(4, "little"), data
            udp = data[34:]
            # Packets of the network device may come as well.
            if data[23] == 17 and udp[2:4] == b"\x12\xb8":
                got.setdefault((udp[8], data[26:34] + udp[:4]), []).append((index, udp[9]))
    for (number, hashed), places in got.items():
        queue = toeplitz(hashed) % QUEUES
        assert places == [(queue, turn) for turn in range(TURNS)], (number, places)
    used = {places[0][0] for places in got.values()}
    assert len(got) == FLOWS and len(used) >= 2, got

    flow.close()
    qp.close()
    table.close()
    for queue in queues:
        queue.close()
    print("right", flush=True)


COMMANDS = {
    "send": send,
    "receive": receive,
    "send-kinds": send_kinds,
    "receive-kinds": receive_kinds,
    "send-scaled": send_scaled,
    "receive-scaled": receive_scaled,
    "send-tunnels": send_tunnels,
    "receive-tunnels": receive_tunnels,
    "queue-in-error": queue_in_error,
    "queue-that-fails": queue_that_fails,
}
COMMANDS[sys.argv[1]](*sys.argv[2:])
