# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Makes allocations of the kernel fail, one at a time. The kernel needs FAILSLAB and FAIL_PAGE_ALLOC."""
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
    """Allows all allocations of the kernel to fail, including those that could wait for memory."""
    for kind in ("failslab", "fail_page_alloc"):
        knobs = DEBUGFS / kind
        (knobs / "verbose").write_text("0")
        (knobs / "ignore-gfp-wait").write_text("N")
    (DEBUGFS / "fail_page_alloc" / "min-order").write_text("0")


def code_of(error):
    """Returns the errno of an exception. A MemoryError of Python, which also gets memory from the kernel, is ENOMEM."""
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
        """Disarms, and returns the number of allocations up to the one that would fail; 0 if it has failed."""
        left = os.read(self.reader, 16)
        os.write(self.writer, b"0")
        os.close(self.reader)
        return int(left.strip(b"\0\n"))

    def disarm(self):
        """Disarms, and returns whether an allocation has failed since arming."""
        fired = self.left() == 0
        self.failures += fired
        return fired

    def count(self, call, *args):
        """Returns the number of allocations in a call. None of them fails."""
        self.arm(ENDLESS)
        call(*args)
        return ENDLESS - self.left()

    def attempt(self, number, call, *args):
        """Returns the result of a call, its error, and whether an allocation failed in it."""
        result = error = None
        self.arm(number)
        try:
            result = call(*args)
        except (PyverbsError, MemoryError, OSError) as caught:
            error = caught
        return result, error, self.disarm()

    def verb(self, name, call, *, before=None, undo=None, refused=None, tells=True):
        """Repeats a call, in which a later allocation fails each time, until none fails. Returns the last result.

        before: prepares each call. undo: reverts a call that succeeded although an allocation failed. refused: checks
        that a failed call has changed nothing. tells: false if the library loses the errno of the call.
        """
        errors = 0
        for number in range(1, MANY):
            if before:
                before()
            result, error, fired = self.attempt(number, call)
            if not fired:
                if error:
                    raise SystemExit(f"{name}: {error}, although allocation {number} did not fail")
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
        """Does the same for a call that creates an object. Destroys objects that were created despite a failure."""
        return self.verb(name, call, undo=lambda made: made.close(), tells=tells)

    def destroy(self, name, make):
        """Destroys objects, with a later allocation failing each time. Each object must be gone afterwards."""
        for number in range(1, MANY):
            victim = make()
            _, error, fired = self.attempt(number, victim.close)
            if error:
                raise SystemExit(f"{name} still exists: {error}, when allocation {number} failed")
            if not fired:
                print(f"{name}: gone, {number - 1} allocations", flush=True)
                return
        raise SystemExit(f"{name}: more than {MANY} allocations")

    def die(self, name, live):
        """Lets processes create objects and exit while an allocation fails. The kernel must destroy the objects."""
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
                raise SystemExit(f"{name}: the process created no objects")
            if resources() != before:
                raise SystemExit(f"{name}: {resources()} exist, before {before}, when allocation {number} failed")
            if left:
                print(f"{name}: gone, {number - 1} allocations", flush=True)
                return
            self.failures += 1
        raise SystemExit(f"{name}: more than {MANY} allocations")


def resources():
    """Returns the RDMA objects that exist."""
    return subprocess.run(["rdma", "-j", "resource", "show"], check=True, capture_output=True, text=True).stdout


def perish(live, number):
    """Creates objects with live(), and exits this process. Allocation `number` of its exit fails."""
    try:
        keep = live()
        os.write(os.open(FAIL_NTH, os.O_WRONLY), b"%d" % number)
        os._exit(0 if keep else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
