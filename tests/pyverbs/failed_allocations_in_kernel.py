#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests what the kernel does without a program's request while it runs out of memory. As in failed_allocations.py, each
allocation fails once.

failed_allocations_in_kernel.py COMMAND --device NAME

verbs      Calls the verbs of kernel users, by the module vrnic-verbs.
add        Adds addresses to the network device. The core adds GIDs for them, and some GIDs are missing afterwards.
repair     Removes the addresses without GIDs, and adds them again. Then no GID may be missing.
delete     Removes addresses. Their GIDs must be gone even if an allocation fails.
rest       Removes the remaining addresses.
gids       Prints the GIDs and their types, in order.
probe      Unbinds the driver, which must not fail, and binds it again. Afterwards the device works, or it is not bound
           but can be. There are too many allocations to let each fail: the first ones fail, then some at equal
           distances.
"""
import argparse
import collections
import contextlib
import errno
import ipaddress
import itertools
import json
import os
import pathlib
import subprocess
import time

import pyverbs.enums as e
from pyverbs.device import Context

from injection import MANY, Injection, code_of, enable
from libibverbs import GROUP, Datagrams

PATIENCE = 120
# More than the table has.
GIDS = 300
TYPES = {e.IBV_GID_TYPE_ROCE_V1: "IB/RoCE v1", e.IBV_GID_TYPE_ROCE_V2: "RoCE v2"}
# A PCI BAR that cannot be reserved for want of memory is busy (Linux: kernel/resource.c, __request_region).
OUT_OF_MEMORY = (errno.ENOMEM, errno.ENOBUFS, errno.EBUSY)
DRIVER = pathlib.Path("/sys/bus/virtio/drivers/vrnic")


def verbs(args):
    run = os.open("/sys/module/vrnic_verbs/parameters/run", os.O_WRONLY)
    Injection().verb("verbs of the kernel", lambda: os.write(run, b"1"))


class Workers:
    """Counts the allocations of each thread that may run the work of an unbound workqueue."""

    def __init__(self):
        enable()

    def arm(self, number):
        self.number = number
        self.files = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if (process / "comm").read_text().startswith("kworker/u"):
                    (process / "fail-nth").write_text(str(number))
                    self.files.append(process / "fail-nth")

    def left(self):
        """Returns the remaining count of each thread that still exists."""
        for file in self.files:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield int(file.read_bytes().strip(b"\0\n"))

    def fired(self):
        return 0 in self.left()

    def disarm(self):
        """Returns whether any allocation was counted, and whether one has failed."""
        left = list(self.left())
        for file in self.files:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                file.write_text("0")
        return min(left, default=self.number) < self.number, 0 in left


class Addresses:
    """Addresses of a network device, and the GIDs that the core derives from them."""

    # Each has two GIDs, and the table has 256.
    MOST = 50

    def __init__(self, device):
        self.context = Context(name=device)
        directory = pathlib.Path(f"/sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/0")
        self.netdev = directory.read_text().strip()

    def gids(self):
        return sorted(
            (ipaddress.ip_address(entry.gid_str()).packed.hex(), TYPES[entry.gid_type])
            for entry in self.context.query_gid_table(GIDS)
        )

    def has(self, address):
        """Returns the number of GIDs of an address."""
        gid = ipaddress.ip_address(f"::ffff:{address}").packed.hex()
        return sum(gid == found for found, _ in self.gids())

    def present(self, net):
        """Returns the addresses of the network device that begin with `net` and a dot."""
        show = ["ip", "-j", "address", "show", "dev", self.netdev]
        links = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)
        every = (info["local"] for link in links for info in link.get("addr_info", ()))
        return [address for address in every if address.startswith(f"{net}.")]

    def change(self, verb, address):
        subprocess.run(["ip", "address", verb, f"{address}/32", "dev", self.netdev], check=True)

    def is_done(self, verb, address):
        return self.has(address) == (2 if verb == "add" else 0)

    def change_surely(self, verb, address):
        """Changes an address, and waits until the core has handled it. The core handles changes in order."""
        self.change(verb, address)
        until(lambda: self.is_done(verb, address), f"{verb} {address}")

    def change_each(self, verb, pairs):
        """Changes the first address of each pair while an allocation fails, then the second to see the end of that."""
        workers = Workers()
        number = 1
        for address, other in pairs:
            workers.arm(number)
            self.change(verb, address)
            until(lambda: workers.fired() or self.is_done(verb, address), f"{verb} {address}")
            counted, fired = workers.disarm()
            self.change_surely(verb, other)
            if verb == "del" and self.has(address):
                raise SystemExit(f"{address} still has a GID after its removal, when allocation {number} failed")
            if fired:
                number += 1
            elif counted:
                print(f"{verb} GIDs: {number - 1} allocations", flush=True)
                return
            # Else a thread did the work that is new.
        raise SystemExit(f"{verb} GIDs: more than {number} allocations")


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: did not happen in time")
        time.sleep(0.05)


def add(args):
    addresses = Addresses(args.device)
    pairs = [(f"10.99.1.{host}", f"10.99.2.{host}") for host in range(1, Addresses.MOST)]
    addresses.change_each("add", pairs)
    missing = [address for address in addresses.present("10.99.1") if addresses.has(address) < 2]
    if not missing:
        raise SystemExit("every address has its GIDs, although allocations failed")
    print(f"{len(missing)} addresses lack GIDs")


def repair(args):
    addresses = Addresses(args.device)
    for address in addresses.present("10.99.1"):
        if addresses.has(address) < 2:
            addresses.change_surely("del", address)
            addresses.change_surely("add", address)


def delete(args):
    addresses = Addresses(args.device)
    pairs = list(zip(addresses.present("10.99.1"), addresses.present("10.99.2")))
    addresses.change_each("del", pairs)


def rest(args):
    addresses = Addresses(args.device)
    for address in addresses.present("10.99"):
        addresses.change_surely("del", address)


def gids(args):
    for gid, kind in Addresses(args.device).gids():
        print(gid, kind)


def probe(args):
    virtio = next(DRIVER.glob("virtio*")).name
    fail = Injection()
    files = {verb: os.open(DRIVER / verb, os.O_WRONLY) for verb in ("bind", "unbind")}

    def write(verb):
        os.write(files[verb], virtio.encode())

    def is_bound():
        return (DRIVER / virtio).exists()

    def unbind_under_failures():
        """Unbinds the driver until no allocation fails. A program has objects of the device each time."""
        for number in range(1, MANY):
            user = Datagrams(args.device)
            user.attach(GROUP)
            _, error, fired = fail.attempt(number, write, "unbind")
            if error and number == 1:
                # There was no memory for what is written: nobody was asked yet.
                write("unbind")
            elif error or is_bound():
                raise SystemExit(f"unbind: {error}, bound: {is_bound()}, when allocation {number} failed")
            user.close()
            if not fired:
                print(f"unbind: {number - 1} allocations", flush=True)
                return
            write("bind")
        raise SystemExit(f"unbind: more than {MANY} allocations")

    unbind_under_failures()
    total = fail.count(write, "bind")
    write("unbind")
    some = range(args.first, total, max(1, (total - args.first) // args.more))
    outcomes = collections.Counter()
    for number in itertools.chain(range(1, args.first), some):
        _, error, fired = fail.attempt(number, write, "bind")
        outcomes[errno.errorcode[code_of(error)] if error else "bound"] += 1
        if is_bound() == bool(error):
            raise SystemExit(f"bind: {error}, bound: {is_bound()}, when allocation {number} failed")
        if error and (not fired or code_of(error) not in OUT_OF_MEMORY):
            raise SystemExit(f"bind: {error}, when allocation {number} failed")
        if not error:
            write("unbind")
    write("bind")
    print(f"bind: {total} allocations, {dict(outcomes)}", flush=True)
    if not pathlib.Path(f"/sys/class/infiniband/{args.device}").exists():
        raise SystemExit(f"the device is no longer named {args.device}")


COMMANDS = dict(verbs=verbs, add=add, repair=repair, delete=delete, rest=rest, gids=gids, probe=probe)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--first", type=int, default=100, help="allocations of the probe that fail one by one")
    parser.add_argument("--more", type=int, default=100, help="that fail of those after them")
    args = parser.parse_args()
    COMMANDS[args.command](args)


main()
