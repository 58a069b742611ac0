# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A VM starts another kernel by kexec under traffic, without a reset of the machine in between. The driver resets the
# device before that, so that the device does not write to the memory of the other kernel, whose driver then finds a
# device that works. The peer gets an error, and the other VM is not affected.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=240
# lab: fresh
# lab: long
# lab: needs CONFIG_KEXEC_FILE=y
. "$LAB_LIB"

state() { vrnicctl --json devices | grep -A3 '"name": "a"' | grep -o '"state": "[a-z]*"' | cut -d'"' -f4; }
is_down() { [ "$(state)" = down ]; }

kernel=build/kernel/$VRNIC_KERNEL/tree
for file in arch/x86/boot/bzImage lab/initramfs; do
	[ ! -f "$kernel/$file" ] || "$LAB_BIN" copy "$(readlink -f "$kernel/$file")" a:/tmp/
done
on -t 60 a python3 -c '
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
paths = ["/tmp/bzImage", "/tmp/initramfs"]
files = [os.open(path, os.O_RDONLY) if os.path.exists(path) else -1 for path in paths]
line = open("/proc/cmdline", "rb").read().strip() + b" by-kexec\0"
# kexec_file_load; the flag KEXEC_FILE_NO_INITRAMFS is 4.
if libc.syscall(320, *files, ctypes.c_ulong(len(line)), line, ctypes.c_ulong(4 if files[1] < 0 else 0)):
    raise OSError(ctypes.get_errno(), "kexec_file_load")
'

busy b 18700 &
bystander=$!
stress="vrnic-stress --device $DEV --gid $GID_INDEX"
long="--seconds $((60 * LAB_SLOWNESS))"
(on -t 60 a sh -c "$stress --port 18701 --server $long" || true) &
server=$!
on -t 90 b sh -c "$stress --port 18701 --client $IP_a $long --patience 20 && exit 9; true" &
client=$!
connected b 18701
[ "$(state)" = up ] || fail "the device of VM a is $(state)"
# LINUX_REBOOT_CMD_KEXEC
(on -t 30 a python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x45584543)' || true) &
jump=$!
within 30 is_down || fail "the device is $(state) although its kernel has gone"
wait $client || fail "the peer of the VM that started another kernel did not get an error"
lab wait a
wait $server $jump || true
on a grep -q ' by-kexec' /proc/cmdline || fail "VM a booted in another way"
active a
on -t 60 a sh -c "$stress --seconds 3"
pair b a 18702 "$stress --port 18702 --server --seconds 2" "$stress --port 18702 --client $IP_b --seconds 2"
enough b 18700
wait $bystander || fail "the other VM was disturbed"
