#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""How mpirun starts its processes in another VM, where nobody logs in. Usage: `remote.py serve` there waits for a command
on port 7999, runs it and ends as it does; `remote.py HOST COMMAND...` is the agent of mpirun (plm_rsh_agent).
"""
import socket
import subprocess
import sys

PORT = 7999
if sys.argv[1:] == ["serve"]:
    caller, _ = socket.create_server(("", PORT)).accept()
    command = caller.makefile().readline()
    done = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=caller, stderr=caller)
    sys.exit(done.returncode)
call = socket.create_connection((sys.argv[1], PORT))
call.sendall(" ".join(sys.argv[2:]).encode() + b"\n")
while output := call.recv(65536):
    sys.stdout.buffer.write(output)
    sys.stdout.flush()
