# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# SMC-R: streams that begin as TCP connections and go on by RDMA WRITE. The server sends back what it gets; the client
# checks each byte.
# usage: smc.py server|client SERVER-ADDRESS

import hashlib
import select
import socket
import sys

IPPROTO_SMC = 256
PORT = 18701
LENGTH = 4 << 20
PART = 100_000


def wait(reader, what):
    if not select.select([reader], [], [], 120)[0]:
        sys.exit(f"nothing arrived: {what}")


role, address = sys.argv[1:3]
sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SMC)
if role == "server":
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, PORT))
    sock.listen(1)
    peer, _ = sock.accept()
    while chunk := peer.recv(1 << 16):
        peer.sendall(chunk)
    sys.exit(0)

sock.connect((address, PORT))
sent, got = (hashlib.sha256(b"smc").digest() * (LENGTH // 32))[:LENGTH], bytearray()
# Not the same at each distance.
sent = bytes(value ^ (index >> 12 & 255) for index, value in enumerate(sent))
for start in range(0, LENGTH, PART):
    part = sent[start : start + PART]
    sock.sendall(part)
    while len(got) < start + len(part):
        wait(sock, f"byte {len(got)}")
        chunk = sock.recv(1 << 16)
        if not chunk:
            sys.exit(f"the stream ended after {len(got)} bytes")
        got += chunk
if bytes(got) != sent:
    sys.exit("the received data differs from the data sent")
sock.shutdown(socket.SHUT_WR)
if sock.recv(1):
    sys.exit("more bytes came back than were sent")
print(f"smc: {LENGTH} bytes each way, all right")
