# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A process makes the kernel wait for memory to which it moves a region, for as long as it likes. Whoever asks for the
# details of regions does not wait, and the process can be killed.
# lab: fabric=local
# lab: timeout=120
# lab: needs CONFIG_USERFAULTFD=y
. "$LAB_LIB"

cat >"$LAB_DIR/wait" <<'END'
import ctypes, fcntl, mmap, struct, sys
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD

memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
# userfaultfd(), UFFDIO_API and UFFDIO_REGISTER for missing pages: nobody answers.
faults = ctypes.CDLL(None).syscall(323, 0)
fcntl.ioctl(faults, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))
fcntl.ioctl(faults, 0xC020AA00, struct.pack("QQQQ", address, 4096, 1, 0))
pd = PD(Context(name=sys.argv[1]))
mr = MR(pd, 4096, 1)
print("waits", flush=True)
mr.rereg(1, pd, address, 4096, 0)
print("ends", flush=True)
END
on -t 90 a sh -c "python3 -c '$(cat "$LAB_DIR/wait")' $DEV >/tmp/waits 2>&1; true" &
waiter=$!
within 40 on a grep -sq '^waits$' /tmp/waits || fail "there is no region to move: $(on a cat /tmp/waits)"
sleep 1
[ "$(on a cat /tmp/waits)" = waits ] || fail "the kernel does not wait for the memory: $(on a cat /tmp/waits)"
on a sh -c 'setsid -f sh -c "rdma resource show mr -dd >/tmp/regions; touch /tmp/shown"'
within 10 on a test -e /tmp/shown || fail "whoever asks for details of memory regions waits for a process"
on a grep -q python3 /tmp/regions || fail "the region is not shown: $(on a cat /tmp/regions)"

on a pkill -KILL -x python3
wait $waiter
on -t 60 a modprobe -r vrnic || fail "the driver cannot be unloaded"
on -t 60 a modprobe vrnic
active a
