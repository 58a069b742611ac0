# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# RDS: datagrams that arrive, in order, which the kernel carries by RDMA. The server sends back what it gets until it is
# killed; the client checks each byte.
# usage: rds.py server ADDRESS | client ADDRESS SERVER-ADDRESS

import ctypes
import hashlib
import os
import select
import socket
import sys

AF_RDS = 21
PORT = 18700
MESSAGES = 200
SIZES = (1, 100, 4096, 65536, 100_000)

# Python's own functions know no addresses of this family.
libc = ctypes.CDLL(None, use_errno=True)


def name(host):
    """A socket address of IPv4, which RDS uses."""
    family = socket.AF_INET.to_bytes(2, sys.byteorder)
    return family + PORT.to_bytes(2, "big") + socket.inet_aton(host) + bytes(8)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        sys.exit(f"{function.__name__}: {os.strerror(ctypes.get_errno())}")
    return result


def send(payload, to):
    call(libc.sendto, sock.fileno(), payload, ctypes.c_size_t(len(payload)), 0, to, len(to))


def receive():
    payload, origin = ctypes.create_string_buffer(1 << 18), ctypes.create_string_buffer(16)
    length = ctypes.c_int(16)
    size = call(libc.recvfrom, sock.fileno(), payload, ctypes.c_size_t(1 << 18), 0, origin, ctypes.byref(length))
    return payload.raw[:size], origin.raw


role, own = sys.argv[1:3]
sock = socket.socket(AF_RDS, socket.SOCK_SEQPACKET, 0)
sock.setblocking(True)
call(libc.bind, sock.fileno(), name(own), 16)
if role == "server":
    # What comes before this is lost.
    open("/tmp/rds-server", "w").close()
    while True:
        send(*receive())

server, total = name(sys.argv[3]), 0
for number in range(MESSAGES):
    seed = hashlib.sha256(str(number).encode()).digest()
    payload = (seed * 10_000)[: SIZES[number % len(SIZES)]]
    send(payload, server)
    if not select.select([sock], [], [], 120)[0]:
        sys.exit(f"message {number} did not come back")
    got, origin = receive()
    if got != payload or origin[:8] != server[:8]:
        sys.exit(f"message {number} came back with {len(got)} bytes, which differ from the {len(payload)} bytes sent")
    total += len(payload)
print(f"rds: {MESSAGES} messages, {total} bytes each way, all right")
