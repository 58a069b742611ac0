# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Writes and reads blocks of the NVMe disk /run/disk with right and with wrong protection information. Run in a VM."""

import ctypes
import fcntl
import struct

BLOCK = 512
BLOCKS = 8
FIRST = 1000
WRITE, READ = 1, 2
# The controller checks the reference tag, the application tag or the guard, or it adds and removes the information.
CHECK_REF, CHECK_APP, CHECK_GUARD, ADD = 1 << 10, 1 << 11, 1 << 12, 1 << 13
CHECK = CHECK_REF | CHECK_GUARD
BAD_GUARD, BAD_APP, BAD_REF = 0x282, 0x283, 0x284
NVME_IOCTL_IO_CMD = 0xC0484E43

disk = open("/run/disk", "rb")


def command(opcode, control, data, meta, ref=FIRST, app=(0, 0)):
    """Performs a command on the blocks, and returns its status."""
    pointers = [(ctypes.c_char * len(memory)).from_buffer(memory) if memory else None for memory in (meta, data)]
    request = bytearray(struct.pack(
        "<BBHIIIQQII8I", opcode, 0, 0, 1, 0, 0, *(ctypes.addressof(p) if p else 0 for p in pointers),
        len(meta), len(data), FIRST, 0, BLOCKS - 1 | control << 16, 0, ref, app[0] | app[1] << 16, 0, 0))
    return fcntl.ioctl(disk, NVME_IOCTL_IO_CMD, request) & 0x7FF


def guard(block):
    """Returns the CRC of a block."""
    crc = 0
    for byte in block:
        crc ^= byte << 8
        for _ in range(8):
            crc = crc << 1 ^ (0x18BB7 if crc & 0x8000 else 0)
    return crc


def blocks(seed):
    """Returns blocks, all different, and their information."""
    data = bytearray((seed + i + i // 251) % 256 for i in range(BLOCKS * BLOCK))
    each = (guard(data[i * BLOCK:(i + 1) * BLOCK]) for i in range(BLOCKS))
    return data, bytearray(b"".join(struct.pack(">HHI", crc, 0, FIRST + i) for i, crc in enumerate(each)))


def wrong(meta, at):
    """Returns a copy in which one byte of the information of the sixth block is wrong."""
    copy = bytearray(meta)
    copy[5 * 8 + at] ^= 1
    return copy


def expect(what, found, expected):
    """Ends the test unless both are equal."""
    assert found == expected, f"{what}: {found!r}, not {expected!r}"


def stored(what, data, meta):
    """Checks what is on the disk."""
    found, info = bytearray(len(data)), bytearray(len(meta))
    expect(what + ", read", command(READ, CHECK, found, info), 0)
    expect(what + ", data", found, data)
    expect(what + ", information", info, meta)


data, meta = blocks(1)
expect("write", command(WRITE, CHECK, data, meta), 0)
stored("written", data, meta)

# Nothing that is wrong is stored.
other, info = blocks(2)
expect("wrong guard", command(WRITE, CHECK, other, wrong(info, 0)), BAD_GUARD)
expect("wrong reference tag", command(WRITE, CHECK, other, wrong(info, 7)), BAD_REF)
expect("wrong application tag", command(WRITE, CHECK | CHECK_APP, other, wrong(info, 3), app=(0, 0xFFFF)), BAD_APP)
stored("refused", data, meta)
expect("read of other blocks", command(READ, CHECK, bytearray(len(data)), bytearray(len(meta)), ref=FIRST + 1), BAD_REF)

# The RNIC of this host adds and removes the information.
expect("write without information", command(WRITE, CHECK | ADD, other, b""), 0)
stored("added", other, info)
found = bytearray(len(other))
expect("read without information", command(READ, CHECK | ADD, found, b""), 0)
expect("data without information", found, other)
print("protection information is checked")
