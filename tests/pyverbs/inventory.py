#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs rdma-core's own tests on a device, and compares the outcomes with a pinned list.

A run of that suite without failures proves little, because a test is skipped if the device refuses a verb with
EOPNOTSUPP. So the list has a line for each test, with its outcome and, for a skip, the message of the suite. Any
difference is an error. Two files beside this program are for all lists: skips.tsv has our reason for each message of
the suite, and soft-roce-passes.txt names the tests that must be pinned as passed.

inventory.py --device NAME [--suite DIRECTORY] [--part K/N | --test NAME] [--modules NAME,…]
             [--pinned FILE [--differing OTHER]]

Compares with FILE, or prints the list if no FILE is given. The outcomes in OTHER, a list of what differs on a fabric,
replace those in FILE. These tests need not pass as on Soft-RoCE. DIRECTORY contains the tests; default: those of the
system. --part runs one of N parts of the suite, and keeps classes together. --test runs only this test, --modules only
the tests in these modules, such as test_qp.
"""

import argparse
import contextlib
import gzip
import hashlib
import multiprocessing
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SUITE = pathlib.Path("/usr/share/doc/rdma-core/tests")
HUGE_PAGES = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


def unpacked(suite):
    """Returns a copy of the suite, with all files decompressed."""
    base = pathlib.Path(tempfile.mkdtemp(prefix="rdma-core-"))
    target = base / "tests"
    target.mkdir()
    for source in suite.iterdir():
        if source.suffix == ".gz":
            (target / source.stem).write_bytes(gzip.decompress(source.read_bytes()))
        elif source.is_file():
            shutil.copy(source, target)
    return base


@contextlib.contextmanager
def huge_pages(count):
    """Provides `count` huge pages of 2 MiB."""
    HUGE_PAGES.write_text(str(count))
    try:
        yield
    finally:
        HUGE_PAGES.write_text("0")


class Recorder(unittest.TestResult):
    """Notes the outcome of every test under its id."""

    def __init__(self):
        super().__init__()
        self.outcomes = {}
        self.details = {}

    def startTest(self, test):
        super().startTest(test)
        # Many tests ask for random attributes, some of which are not supported: the same in every run.
        random.seed(test.id())

    def stopTest(self, test):
        super().stopTest(test)
        # Some tests end their processes and do not wait for them, whose ports the next test wants.
        for child in multiprocessing.active_children():
            child.join(20)

    def note(self, test, outcome, detail=""):
        """Records an outcome. The first outcome of a test counts unless a later one is worse."""
        name = test.id()
        if self.outcomes.get(name, "ok") == "ok":
            self.outcomes[name] = outcome
            self.details[name] = " ".join(str(detail).split())

    def result(self, name):
        """Returns the outcome of a test and, unless it passed, the message of the suite, as in the pinned list."""
        outcome = self.outcomes.get(name, "did not run")
        detail = self.details.get(name, "")
        return (outcome,) if outcome == "ok" or not detail else (outcome, detail)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skip", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, "FAIL", err[1])

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, "ERROR", err[1])


class Part:
    """A part of the suite, chosen by name and not by position, so that it is the same for the pinned list."""

    def __init__(self, text):
        self.number, self.parts = map(int, text.split("/"))
        if not 0 <= self.number < self.parts:
            raise ValueError(text)

    def has(self, name):
        """Returns whether the part contains a test."""
        group = hashlib.md5(name.rpartition(".")[0].encode()).digest()[0]
        return group % self.parts == self.number


def table(path):
    """Returns the fields of each line of a file that is not a comment."""
    lines = path.read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def cases(suite):
    """Yields all tests of a suite of suites."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        else:
            yield test


def wait_after_sends():
    """Lets the device complete a send before the tests of completion queues continue.

    One test posts sends and immediately makes the queue too small for their completions. If the device has not yet
    executed the sends, the queue can shrink, and overruns later. The suite itself waits since its commit 197d1a40a
    (January 2026).
    """
    import tests.test_cq

    utilities = tests.test_cq.u

    def send(*arguments, **named):
        utilities.send(*arguments, **named)
        time.sleep(0.2)

    tests.test_cq.u = types.SimpleNamespace(**{**vars(utilities), "send": send})


def run(device, suite, part, chosen, test=None):
    """Returns the outcome and reason of each test of the part of the suite in chosen modules, or of one test."""
    base = unpacked(suite)
    tests = base / "tests"
    sys.path[:0] = [str(base), str(tests)]
    os.chdir(base)
    sys.argv = [sys.argv[0], "--dev", device]
    from args_parser import parser  # the suite's own, which its modules ask for the device

    parser.parse_args()
    names = [test] if test else sorted("tests." + path.stem for path in tests.glob("test_*.py") if chosen(path.stem))
    recorder = Recorder()
    loaded = cases(unittest.defaultTestLoader.loadTestsFromNames(names))
    wait_after_sends()
    with huge_pages(8):
        unittest.TestSuite(test for test in loaded if part.has(test.id())).run(recorder)
    shutil.rmtree(base, ignore_errors=True)
    return recorder


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", required=True)
    options.add_argument("--suite", type=pathlib.Path, default=SUITE)
    options.add_argument("--part", type=Part, default=Part("0/1"), metavar="K/N")
    options.add_argument("--test")
    options.add_argument("--modules", type=lambda text: text.split(","))
    options.add_argument("--pinned", type=pathlib.Path)
    options.add_argument("--differing", type=pathlib.Path)
    options = options.parse_args()
    # The suite counts on processes that have what their parent has; Python 3.14 starts others.
    multiprocessing.set_start_method("fork")
    # Read before the suite changes the directory.
    pinned = {name: tuple(rest) for name, *rest in table(options.pinned)} if options.pinned else {}
    differing = {name: tuple(rest) for name, *rest in table(options.differing)} if options.differing else {}
    pinned.update((name, outcome) for name, outcome in differing.items() if name in pinned)
    reasons = {said for said, _reason in table(HERE / "skips.tsv")}
    must_pass = {name for name, in table(HERE / "soft-roce-passes.txt")} - differing.keys()
    chosen = lambda module: not options.modules or module in options.modules
    recorder = run(options.device, options.suite, options.part, chosen, options.test)
    if not options.pinned:
        for name in sorted(recorder.outcomes):
            print("\t".join([name, *recorder.result(name)]))
        return 0
    wrong = 0
    for name in sorted(pinned.keys() | recorder.outcomes.keys()):
        if not options.part.has(name) or not chosen(name.split(".")[1]):
            continue
        got, want = recorder.result(name), pinned.get(name, ("in the list",))
        if got != want:
            print(f"{name}: {': '.join(got)}; not {': '.join(want)}")
        elif want[0] != "ok" and name in must_pass:
            print(f"{name}: passes on Soft-RoCE, and is pinned as {want[0]}")
        elif want[0] == "skip" and want[1] not in reasons:
            print(f"{name}: skips.tsv has no reason for: {want[1]}")
        else:
            continue
        wrong += 1
    counts = {}
    for outcome in recorder.outcomes.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
