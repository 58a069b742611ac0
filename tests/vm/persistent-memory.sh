# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# What one VM wrote to a file on the NVDIMM of the other and flushed is there after that VM was killed.
# lab: fabric=local
# lab: fabric=roce
# lab: nvdimm=64
# lab: timeout=240
. "$LAB_LIB"

program=/vrnic/tests/pyverbs/persistent_memory.py
file=/run/pmem/kept

# A namespace whose memory has pages, which DAX needs: what `ndctl create-namespace -m fsdax -M mem` does.
prepare='cd /sys/bus/nd/devices
	echo namespace0.0 > ../drivers/nd_pmem/unbind
	echo ram > pfn0.0/mode
	cat /proc/sys/kernel/random/uuid > pfn0.0/uuid
	echo namespace0.0 > pfn0.0/namespace
	echo pfn0.0 > ../drivers/nd_pmem/bind
	mkfs.ext4 -q -b 4096 /dev/pmem0'

# mounted COMMANDS: mounts the NVDIMM of VM b, on which the commands were run.
mounted() {
	on b sh -ec "modprobe -a nfit nd_pmem ext4
		$1
		mkdir -p /run/pmem
		mount -o dax /dev/pmem0 /run/pmem"
}

# Whether vrnicd has written to the file that is the NVDIMM.
synced() { found -x sync < <(cat "/proc/$(lab pid vrnicd)/task/"*/comm); }

mounted "$prepare"
on b sh -ec "fallocate -l 20000 $file; sync"
synced && fail "vrnicd wrote to the NVDIMM before anything was flushed"
on -t 120 b python3 $program --device "$DEV" --gid "$GID_INDEX" --server --file $file &
server=$!
on -t 120 a python3 $program --device "$DEV" --gid "$GID_INDEX" --client "$IP_b"
synced || fail "vrnicd wrote nothing to the NVDIMM"
lab kill b
wait $server || true
lab boot b
mounted ""
on b python3 $program --check $file
on b umount /run/pmem
