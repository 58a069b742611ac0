# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Allocations of the kernel that fail, one at a time: needs FAILSLAB and FAIL_PAGE_ALLOC."""
import errno
import os
import pathlib
import subprocess
import traceback

from pyverbs.pyverbs_error import PyverbsError

FAIL_NTH = "/proc/thread-self/fail-nth"
DEBUGFS = pathlib.Path("/sys/kernel/debug")
# More allocations than any verb has.
MANY = 2000
# More than anything has.
ENDLESS = 1 << 30


def enable():
    """All allocations of the kernel may fail, also those that could wait for memory."""
    for kind in ("failslab", "fail_page_alloc"):
        knobs = DEBUGFS / kind
        (knobs / "verbose").write_text("0")
        (knobs / "ignore-gfp-wait").write_text("N")
    (DEBUGFS / "fail_page_alloc" / "min-order").write_text("0")


def code_of(error):
    """The errno of an exception; that of Python itself, which asks the kernel for memory now and then, is ENOMEM."""
    if isinstance(error, OSError):
        return error.errno
    return abs(getattr(error, "error_code", errno.ENOMEM))


class Injection:
    """Makes one of this thread's next allocations fail."""

    def __init__(self):
        enable()
        self.writer = os.open(FAIL_NTH, os.O_WRONLY)
        self.failures = 0

    def arm(self, number):
        # The file knows no seeking: one is read once. It is opened now, since that allocates.
        self.reader = os.open(FAIL_NTH, os.O_RDONLY)
        os.write(self.writer, b"%d" % number)

    def left(self):
        """How many allocations were still to come when it was disarmed, which this does."""
        left = os.read(self.reader, 16)
        os.write(self.writer, b"0")
        os.close(self.reader)
        return int(left.strip(b"\0\n"))

    def disarm(self):
        """Whether an allocation has failed since it was armed."""
        fired = self.left() == 0
        self.failures += fired
        return fired

    def count(self, call, *args):
        """How many allocations there are in a call. None fails."""
        self.arm(ENDLESS)
        call(*args)
        return ENDLESS - self.left()

    def attempt(self, number, call, *args):
        """What a call returned, its error, and whether an allocation has failed in it."""
        result = error = None
        self.arm(number)
        try:
            result = call(*args)
        except (PyverbsError, MemoryError, OSError) as caught:
            error = caught
        return result, error, self.disarm()

    def verb(self, name, call, *, before=None, undo=None, refused=None, tells=True):
        """Calls until nothing has failed in a call, whose result it returns. Before each call is what it needs; undo
        takes back what a call has done despite a failure, and refused looks that one has done nothing. What does not
        tell has an error, but the library forgets which.
        """
        errors = 0
        for number in range(1, MANY):
            if before:
                before()
            result, error, fired = self.attempt(number, call)
            if not fired:
                if error:
                    raise SystemExit(f"{name}: {error}, though allocation {number} did not fail")
                print(f"{name}: {number - 1} allocations, {errors} of them needed", flush=True)
                return result
            if error:
                errors += 1
                if tells and code_of(error) not in (errno.ENOMEM, errno.ENOBUFS):
                    raise SystemExit(f"{name}: {error}, when allocation {number} failed")
                if refused:
                    refused()
            elif undo:
                undo(result)
        raise SystemExit(f"{name}: more than {MANY} allocations")

    def make(self, name, call, *, tells=True):
        """The same for what makes an object. Objects made despite a failure are destroyed."""
        return self.verb(name, call, undo=lambda made: made.close(), tells=tells)

    def destroy(self, name, make):
        """Destroys objects. None may survive."""
        for number in range(1, MANY):
            victim = make()
            _, error, fired = self.attempt(number, victim.close)
            if error:
                raise SystemExit(f"{name} stays: {error}, when allocation {number} failed")
            if not fired:
                print(f"{name}: gone, {number - 1} allocations", flush=True)
                return
        raise SystemExit(f"{name}: more than {MANY} allocations")

    def die(self, name, live):
        """Processes that make objects and die of it: the kernel destroys them."""
        before = resources()
        for number in range(1, MANY):
            pid = os.fork()
            if pid == 0:
                perish(live, number)
            # Who is dead and was not waited for can still be asked.
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            left = int(pathlib.Path(f"/proc/{pid}/fail-nth").read_bytes().strip(b"\0\n"))
            os.waitpid(pid, 0)
            if end.si_status != 0:
                raise SystemExit(f"{name}: it has nothing to lose")
            if resources() != before:
                raise SystemExit(f"{name}: {resources()} is left of {before}, when allocation {number} failed")
            if left:
                print(f"{name}: gone, {number - 1} allocations", flush=True)
                return
            self.failures += 1
        raise SystemExit(f"{name}: more than {MANY} allocations")


def resources():
    """What there is of RDMA objects."""
    return subprocess.run(["rdma", "-j", "resource", "show"], check=True, capture_output=True, text=True).stdout


def perish(live, number):
    """Ends this process with what live() makes, and lets that allocation of its end fail."""
    try:
        keep = live()
        os.write(os.open(FAIL_NTH, os.O_WRONLY), b"%d" % number)
        os._exit(0 if keep else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
