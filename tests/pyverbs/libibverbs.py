# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Verbs that pyverbs lacks, called by ctypes: multicast groups, and moderation of completion queues."""
import ctypes
import struct

import pyverbs.enums as e
from pyverbs.pyverbs_error import PyverbsRDMAError

LIBRARY = ctypes.CDLL("libibverbs.so.1", use_errno=True)
POINTER = ctypes.c_void_p
# A multicast group.
GROUP = bytes.fromhex("ff120000000000000000000000000077")
IBV_CQ_ATTR_MODERATE = 1
# Bytes of `struct ibv_modify_cq`, which the library fills.
MODIFY_CQ = 40


def pointer(name, *args):
    """Calls a function that returns a pointer."""
    function = LIBRARY[name]
    function.restype = POINTER
    made = function(*args)
    if not made:
        raise PyverbsRDMAError(name, ctypes.get_errno())
    return POINTER(made)


def call(name, *args):
    """Calls a function that returns an errno."""
    error = LIBRARY[name](*args)
    if error:
        raise PyverbsRDMAError(name, error)


def open_device(name):
    """Opens the device with this name, and returns its context."""
    devices = pointer("ibv_get_device_list", None)
    name_of = LIBRARY["ibv_get_device_name"]
    name_of.restype = ctypes.c_char_p
    try:
        # The list ends with a null pointer.
        for device in ctypes.cast(devices, ctypes.POINTER(POINTER)):
            if not device:
                raise SystemExit(f"there is no device {name}")
            if name_of(POINTER(device)) == name.encode():
                return pointer("ibv_open_device", POINTER(device))
    finally:
        LIBRARY["ibv_free_device_list"](devices)


class Datagrams:
    """A queue pair for datagrams, with the objects that it needs."""

    def __init__(self, device):
        self.context = open_device(device)
        self.pd = pointer("ibv_alloc_pd", self.context)
        self.cq = pointer("ibv_create_cq", self.context, 100, None, None, 0)
        # `struct ibv_qp_init_attr`
        init = struct.pack("4P5I2i4x", 0, self.cq.value, self.cq.value, 0, 10, 10, 1, 1, 0, e.IBV_QPT_UD, 0)
        self.qp = pointer("ibv_create_qp", self.pd, ctypes.create_string_buffer(init))

    def attach(self, group):
        """Attaches the queue pair to a multicast group."""
        call("ibv_attach_mcast", self.qp, group, 0)

    def detach(self, group):
        """Detaches the queue pair from a multicast group."""
        call("ibv_detach_mcast", self.qp, group, 0)

    def moderate(self, count, period):
        """Sets the moderation of the completion queue's events."""
        attr = struct.pack("I2H", IBV_CQ_ATTR_MODERATE, count, period)
        room = ctypes.create_string_buffer(MODIFY_CQ)
        call("ibv_cmd_modify_cq", self.cq, attr, room, ctypes.c_size_t(MODIFY_CQ))

    def close(self):
        """Destroys everything."""
        call("ibv_destroy_qp", self.qp)
        call("ibv_destroy_cq", self.cq)
        call("ibv_dealloc_pd", self.pd)
        call("ibv_close_device", self.context)
