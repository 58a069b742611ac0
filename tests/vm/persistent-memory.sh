# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# One VM writes data to a file on the other VM's NVDIMM and flushes it. The data are then on the host's disk, and the
# other VM still has them after it was killed. A fault makes a flush fail, like an NVDIMM that cannot be written.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: needs CONFIG_BLK_DEV_PMEM=m
# lab: nvdimm=64
# lab: timeout=240
# lab: vrnicd faults = true
. "$LAB_LIB"

program=/vrnic/tests/pyverbs/persistent_memory.py
file=/run/pmem/kept

# Creates a namespace whose memory has struct pages, which DAX needs, like `ndctl create-namespace -m fsdax -M mem`.
prepare='cd /sys/bus/nd/devices
	echo namespace0.0 > ../drivers/nd_pmem/unbind
	echo ram > pfn0.0/mode
	cat /proc/sys/kernel/random/uuid > pfn0.0/uuid
	echo namespace0.0 > pfn0.0/namespace
	echo pfn0.0 > ../drivers/nd_pmem/bind
	mkfs.ext4 -q -b 4096 /dev/pmem0'

# mounted COMMANDS: mounts the NVDIMM of VM b after running the commands on it.
mounted() {
	on b sh -ec "modprobe -a nfit nd_pmem ext4
		$1
		mkdir -p /run/pmem
		mount -o dax /dev/pmem0 /run/pmem"
}

# Checks whether vrnicd has written to the file that backs the NVDIMM.
synced() { found -x sync < <(cat "/proc/$(lab pid vrnicd)/task/"*/comm); }

# Prints the KiB of the NVDIMM that vrnicd has written and the host's kernel has not written to the disk since. The data
# alone prove nothing, because they stay in the host's memory when a VM is killed.
nvdimm=$(realpath "$(tr '\0' '\n' <"/proc/$(lab pid qemu-b)/cmdline" | sed -n 's/.*id=pmem,mem-path=\([^,]*\),.*/\1/p')")
dirty() {
	awk -v file="$nvdimm" '/^[0-9a-f]+-[0-9a-f]+ / { is_it = $6 == file } is_it && /^(Shared|Private)_Dirty:/ { sum += $2 }
		END { print sum + 0 }' "/proc/$(lab pid vrnicd)/smaps"
}

mounted "$prepare"
on b sh -ec "fallocate -l 20000 $file; sync"
on -t 300 b python3 $program --device "$DEV" --gid "$GID_INDEX" --server --file $file &
server=$!
on -t 120 a sh -c "mkfifo /run/steps
	exec python3 $program --device $DEV --gid $GID_INDEX --client $IP_b <>/run/steps" >"$LAB_DIR/steps" &
client=$!

# step WHAT: makes the client take its next step.
steps=0
taken() { [ "$(wc -l <"$LAB_DIR/steps")" = $steps ] || ! kill -0 $client; }
step() {
	on a sh -c "echo $1 >/run/steps"
	steps=$((steps + 1))
	within 40 taken || fail "the server did not finish: $1"
	[ "$(tail -n 1 "$LAB_DIR/steps")" = "$1" ] || fail "the client failed: $1"
}
# After VM b has prepared its pages, it is stopped, so that nothing else writes to them.
within 40 on a test -p /run/steps
on b sh -c 'echo 0 >/proc/sys/vm/dirty_writeback_centisecs'
step write
lab qmp b '{"execute": "stop"}' >/dev/null
# The host's kernel may write pages to the disk on its own, but not repeatedly.
leaves_dirty() {
	step write
	[ "$(dirty)" -gt 0 ]
}
! synced || fail "vrnicd wrote to the NVDIMM before any FLUSH"
for flush in range region; do
	within 40 leaves_dirty || fail "no page of the NVDIMM is dirty after it was written"
	step $flush
	left=$(dirty)
	[ "$left" = 0 ] || fail "$left KiB are not on the disk after a flush of the $flush"
done
synced || fail "vrnicd wrote nothing to the NVDIMM"
vrnicctl fault add -d b persistence-fails >/dev/null
step refused
vrnicctl fault list -d b | found persistence-fails
vrnicctl fault clear >/dev/null

pkill -P $client
lab kill b
wait $server $client || true
lab boot b
mounted ""
on b python3 $program --check $file
on b umount /run/pmem
