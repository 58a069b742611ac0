#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Compiles what a careless or malicious driver without unsafe code could write, and checks that rustc refuses it.

    check.py OBJECTS OUTPUT [PART-OF-NAME]

OBJECTS is a directory in which the module was built: the programs see its crates, with the same flags. The compiler's
messages go to the directory OUTPUT.

Each program is compiled twice. With `--cfg refused` its errors must be exactly those that it marks. A mark is
`//~ E0597: text` on the line of the error or, as `//~^`, on the line below. The text, a part of the message, may be
missing. `lifetime` stands for errors of lifetimes without a code. Without `--cfg refused` the program must compile, so
nothing else in it can be the reason for the errors.
"""

import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import typing
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
MARK = re.compile(r"//~(\^*) (\w+)(?:: (.*))?$")
# Flags that are about the driver's own files, or that only clippy knows.
OTHERS = re.compile(r"--crate-name|vrnic$|--emit=|--out-dir|--remap-path|-[AW]clippy::|drivers/")


class Compiler:
    """The compiler of the driver, with its flags."""

    def __init__(self, objects, output):
        self.objects, self.output = objects, output
        saved = objects / "drivers/infiniband/hw/vrnic/.main.o.cmd"
        if not saved.exists():
            sys.exit(f"the module was not built in {objects}")
        words = shlex.split(saved.read_text().splitlines()[0].partition(" := ")[2])
        self.variables = os.environ | {"RUSTC_BOOTSTRAP": "1"}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            self.variables[name] = value
        # Clippy runs as the compiler whose name it replaces.
        words[0] = words[0].replace("clippy-driver", "rustc")
        self.words = [word for word in words if not OTHERS.match(word)]

    def compile(self, program, name, *flags):
        """Compiles a program, including its code: some assertions are evaluated only then.

        Returns whether that succeeded, and the errors.
        """
        words = [*self.words, *flags, "-Awarnings", "--error-format=json", "--crate-name", program.stem,
                 f"--emit=obj={self.output}/{name}.o", str(program)]
        result = subprocess.run(words, cwd=self.objects, env=self.variables, stderr=subprocess.PIPE, text=True,
                                check=False)
        texts, messages = [], []
        for line in result.stderr.splitlines():
            if line.startswith("{"):
                messages.append(json.loads(line))
            texts.append(messages[-1]["rendered"] if line.startswith("{") else line)
        (self.output / f"{name}.log").write_text("\n".join(texts))
        return result.returncode == 0, list(errors(messages, program))


class Error(typing.NamedTuple):
    """An error of the compiler: its line in the program, if it has one there, its code, and its text."""

    line: int | None
    code: str | None
    message: str
    rendered: str

    def is_marked(self, mark):
        """Returns whether this is the error that a program marks."""
        line, code, part = mark
        is_here = self.line == line or self.line is None and part
        return bool(is_here and self.code == code and part in self.rendered)


def lines(message, program):
    """Returns the lines of a program to which a message of the compiler points."""
    spans = (span for span in message["spans"] if span["is_primary"] and span["file_name"] == str(program))
    return sorted({span["line_start"] for span in spans})


def errors(messages, program):
    """Returns the errors among messages of the compiler."""
    for index, message in enumerate(messages):
        text, code = message["message"], (message["code"] or {}).get("code")
        if message["level"] != "error" or text.startswith("aborting due to"):
            continue
        if text == "lifetime may not live long enough":
            code = "lifetime"
        # An assertion fails where it stands. Notes say which line needs it, unless the compiler has inlined that line.
        notes = itertools.takewhile(lambda note: note["level"] == "note", messages[index + 1 :])
        places = (lines(at, program) for at in [message, *message["children"], *notes])
        for line in next(filter(None, places), [None]):
            yield Error(line, code, text, message["rendered"])


def marks(program):
    """Returns the errors that a program marks: line, code, part of the text."""
    for number, line in enumerate(program.read_text().splitlines(), 1):
        if mark := MARK.search(line):
            yield number - len(mark[1]), mark[2], mark[3] or ""


def check(compiler, program):
    """Compiles a program twice. Returns the number of errors that it marks, and what is wrong."""
    wrong, name = [], program.name
    with_driver = "--extern", f"driver={compiler.output}/libdriver.rmeta"
    _, found = compiler.compile(program, f"{program.stem}-refused", *with_driver, "--cfg", "refused")
    expected = list(marks(program))
    for mark in expected:
        if not any(error.is_marked(mark) for error in found):
            wrong.append(f"{name}:{mark[0]}: the compiler does not say {mark[1]} {mark[2]}".rstrip())
    for error in found:
        if not any(error.is_marked(mark) for mark in expected):
            wrong.append(f"{name}:{error.line}: the compiler says {error.code}: {error.message}")
    succeeded, found = compiler.compile(program, program.stem, *with_driver)
    wrong += [f"{name}:{error.line}: must compile, but {error.code}: {error.message}" for error in found]
    if not succeeded and not found:
        wrong.append(f"{name} cannot be compiled")
    return len(expected), wrong


def main():
    objects, output = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    part = "".join(sys.argv[3:])
    output.mkdir(parents=True, exist_ok=True)
    compiler = Compiler(objects, output)
    driver = HERE / "driver.rs"
    if not compiler.compile(driver, "driver", f"--emit=metadata={output}/libdriver.rmeta")[0]:
        sys.exit(f"driver.rs does not compile; see {output}/driver.log")
    programs = sorted(program for program in HERE.glob("*.rs") if program != driver and part in program.stem)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        results = list(threads.map(lambda program: check(compiler, program), programs))
    refused, wrong = sum(count for count, _ in results), [line for _, lines in results for line in lines]
    for line in wrong:
        print(line)
    if wrong or not refused:
        sys.exit(f"{len(wrong)} wrong; the compiler's messages are in {output}")
    print(f"{refused} errors in {len(programs)} programs are refused")


main()
