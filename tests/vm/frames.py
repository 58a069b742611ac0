#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Checks a capture of RoCEv2: frames.py CAPTURE MAC...

Each invariant CRC must be right; this program computes it itself, from IBTA volume 1, 7.8.1, and annex A17. Each MAC
must have sent every opcode of RC, some of UC and a datagram, over IPv4 and IPv6, in packets of every path MTU. Prints
what each MAC sent.
"""
import struct
import sys
import zlib
from collections import Counter

NAMES = (
    "SEND First,SEND Middle,SEND Last,SEND Last with Immediate,SEND Only,SEND Only with Immediate,"
    "WRITE First,WRITE Middle,WRITE Last,WRITE Last with Immediate,WRITE Only,WRITE Only with Immediate,"
    "READ Request,READ response First,READ response Middle,READ response Last,READ response Only,"
    "Acknowledge,ATOMIC Acknowledge,CompareSwap,FetchAdd"
).split(",")
OPCODES = dict(enumerate(NAMES)) | {
    0x17: "SEND Only with Invalidate",
    0x1D: "ATOMIC WRITE",
    0x20: "UC SEND First",
    0x21: "UC SEND Middle",
    0x22: "UC SEND Last",
    0x24: "UC SEND Only",
    0x2A: "UC WRITE Only",
    0x64: "UD SEND Only",
}
# Opcodes of packets that fill the path MTU: the first of a message.
FULL = {0: 0, 6: 16, 13: 4}
MTUS = {256, 512, 1024, 2048, 4096}


def frames(path):
    """Yields the frames of a pcapng file, without an incomplete block at its end."""
    with open(path, "rb") as file:
        data = file.read()
    order = "<" if data[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
    at = 0
    while at + 12 <= len(data):
        kind, length = struct.unpack_from(order + "II", data, at)
        if length < 12 or at + length > len(data):
            return
        if kind == 6:
            (captured,) = struct.unpack_from(order + "I", data, at + 20)
            yield data[at + 28 : at + 28 + captured]
        at += length


def dissect(frame):
    """Returns source MAC, IP version, opcode, number of bytes after the BTH, and whether the ICRC is right. None if the
    frame is not RoCEv2.
    """
    at = 18 if frame[12:14] == b"\x81\x00" else 14
    version = frame[at] >> 4
    if version == 4:
        length, total = (frame[at] & 15) * 4, struct.unpack_from(">H", frame, at + 2)[0]
        variant = [1, 8, 10, 11]
        protocol = frame[at + 9]
    elif version == 6:
        length, total = 40, 40 + struct.unpack_from(">H", frame, at + 4)[0]
        variant = [1, 2, 3, 7]
        protocol = frame[at + 6]
    else:
        return None
    packet = bytearray(frame[at : at + total])
    if protocol != 17 or struct.unpack_from(">H", packet, length + 2)[0] != 4791:
        return None
    if version == 6:
        packet[0] |= 0x0F
    # What a router may change counts as ones: fields of IP, the UDP checksum, FECN, BECN and the reserved bits.
    for place in variant + [length + 6, length + 7, length + 12]:
        packet[place] = 0xFF
    icrc = zlib.crc32(b"\xff" * 8 + packet[:-4])
    right = struct.pack("<I", icrc) == bytes(packet[-4:])
    mac = ":".join(f"{byte:02x}" for byte in frame[6:12])
    return mac, version, packet[length + 8], len(packet) - length - 8 - 12 - 4, right


def main():
    path, *macs = sys.argv[1:]
    sent = {mac: Counter() for mac in macs}
    versions = {mac: set() for mac in macs}
    mtus = {mac: set() for mac in macs}
    wrong = Counter()
    for frame in frames(path):
        found = dissect(frame)
        if found is None or found[0] not in sent:
            continue
        mac, version, opcode, length, right = found
        sent[mac][opcode] += 1
        versions[mac].add(version)
        if opcode in FULL:
            mtus[mac].add(length - FULL[opcode])
        wrong[mac] += not right
    faults = []
    for mac in macs:
        opcodes = ", ".join(f"{OPCODES.get(code, hex(code))} {count}" for code, count in sorted(sent[mac].items()))
        print(f"{mac}: IPv{sorted(versions[mac])}, MTUs {sorted(mtus[mac])}, {opcodes}")
        missing = [name for code, name in OPCODES.items() if not sent[mac][code]]
        faults += [f"{mac} sent no {name}" for name in missing]
        faults += [f"{mac} sent no IPv{version}" for version in {4, 6} - versions[mac]]
        faults += [f"{mac} sent no packets of path MTU {mtu}" for mtu in sorted(MTUS - mtus[mac])]
        if wrong[mac]:
            faults.append(f"{wrong[mac]} frames of {mac} have a wrong ICRC")
    if faults:
        sys.exit("; ".join(faults))


main()
