# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Functions for the tests of the kernel's storage protocols. Sourced after $LAB_LIB.

# Each VM is the target on one of the fabrics.
case $FABRIC in
local) HOST=a TARGET=b ;;
*) HOST=b TARGET=a ;;
esac
name=IP_$TARGET
ADDRESS=${!name}
# Directory of the target's configuration, which contains nvmet and target.
CONFIG=/sys/kernel/config

# objects VM: prints its RDMA objects, except for completion queues: ib_core keeps those that kernel users share until
# the device is removed.
objects() { on "$1" rdma resource show | sed 's/^[0-9]*: //; s/ cq [0-9]*//'; }
declare -A objects_before=([a]=$(objects a) [b]=$(objects b))
as_before() { [ "$(objects "$1")" = "${objects_before[$1]}" ]; }

# counter VM NAME: prints a counter of the device.
counter() { on "$1" sh -c "rdma statistic show link $DEV/1 -j | jq -r '.[0].$2'"; }

# registers COMMAND...: runs a command. Meanwhile, the host must register memory by work requests, and the target must
# do so if and only if it is VM b (tools/lab/guest/init).
registers() {
	local -A before=([a]=$(counter a local_requests) [b]=$(counter b local_requests))
	"$@"
	[ "$(counter "$HOST" local_requests)" -gt "${before[$HOST]}" ] || fail "the host registers no memory by work requests"
	if [ $TARGET = b ]; then
		[ "$(counter b local_requests)" -gt "${before[b]}" ] || fail "the target does not register the memory of its transfers"
	else
		[ "$(counter a local_requests)" = "${before[a]}" ] || fail "the target registers memory by work requests"
	fi
}

# target COMMANDS: runs commands at the target in the directory of its configuration, and fails if any of them fails.
target() {
	on "$TARGET" sh -ec "mountpoint -q $CONFIG || mount -t configfs none $CONFIG
		cd $CONFIG
		$1" || fail "the target failed: $1"
}

# ram_disk: creates /run/ram of the target with 64 MiB. If $PROTECTED is set, each block has protection information
# (T10-PI), which the disk checks.
ram_disk() {
	if [ -z "${PROTECTED:-}" ]; then
		on "$TARGET" sh -ec 'modprobe brd rd_nr=1 rd_size=65536; ln -sfT /dev/ram0 /run/ram'
		return
	fi
	on "$TARGET" modprobe -a sd_mod
	on "$TARGET" modprobe scsi_debug dev_size_mb=64 delay=0 dif=1 dix=1
	# The disk leaves the protection information of blocks as it is that WRITE SAME writes, so Linux must not use that.
	within 30 on "$TARGET" sh -ec 'cd /sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*:*
		echo 0 | tee scsi_disk/*/max_write_same_blocks
		test -b /dev/$(ls block); ln -sfT /dev/$(ls block) /run/ram' || fail "$TARGET has no disk with protection information"
}

# can_protect: returns whether the kernels have such a disk.
can_protect() { on "$TARGET" modprobe -nq scsi_debug; }

# protected GUARD: checks that the disk of HOST has protection information with this guard if and only if $PROTECTED is
# set.
protected() {
	local format expected=none
	[ -z "${PROTECTED:-}" ] || expected=T10-DIF-TYPE1-$1
	format=$(on "$HOST" sh -c 'cat /sys/block/$(basename $(readlink /run/disk))/integrity/format || echo none')
	[ "$format" = $expected ] || fail "the format of protection information is $format, not $expected"
}

# backstore: makes the RAM disk available to targets of SCSI protocols, as $BACKSTORE.
BACKSTORE=$CONFIG/target/core/iblock_0/ram
backstore() {
	ram_disk
	on "$TARGET" modprobe -a target_core_mod target_core_iblock
	target "mkdir -p $BACKSTORE; echo udev_path=/run/ram >$BACKSTORE/control; echo 1 >$BACKSTORE/enable"
}

# file_system: HOST creates a file system on /run/disk and mounts it at /run/storage. Checks that it reads what it
# wrote.
file_system() {
	on -t 200 "$HOST" sh -ec 'modprobe ext4
		mkfs.ext4 -q /run/disk
		mkdir -p /run/storage
		mount /run/disk /run/storage' || fail "$HOST cannot create a file system"
	registers data
}

# data: HOST writes a file in /run/storage and reads it.
data() {
	on -t 200 "$HOST" sh -ec 'head -c 9000000 /dev/urandom >/run/data
		cp /run/data /run/storage/data
		sync
		echo 3 >/proc/sys/vm/drop_caches
		cmp /run/data /run/storage/data' || fail "the data read differs from the data written"
}

# disk_has_data: after HOST has unmounted it, checks that the file system is intact and has its data, also at the
# target.
disk_has_data() {
	on -t 200 "$HOST" sh -ec 'e2fsck -fn /run/disk
		mount -o ro /run/disk /run/storage
		cmp /run/data /run/storage/data
		umount /run/storage' || fail "data did not survive a disconnect"
	# Mounting it normally would require exclusive use of the disk.
	on "$TARGET" sh -ec 'echo 3 >/proc/sys/vm/drop_caches; debugfs -R "dump data /run/data" /run/ram'
	[ "$(on "$TARGET" sha256sum /run/data)" = "$(on "$HOST" sha256sum /run/data)" ] ||
		fail "the data of $TARGET and $HOST differ"
}

# load: HOST repeatedly writes a file in /run/storage at random and reads it back, with a checksum in each block, until
# `unload`. $EXCUSED, if set, has commands that succeed if a write error is not caused by vrnic; the load then
# continues.
load() {
	on -t 580 "$HOST" sh -c 'rm -f /run/rounds /run/enough
		until [ -e /run/enough ]; do
			fio --name=verified --directory=/run/storage --size=8M --rw=randwrite --bsrange=4k-256k --ioengine=libaio \
				--iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --randrepeat=0 >/run/fio 2>&1 || {
				grep -E "^fio|err=" /run/fio
				'"${EXCUSED:-false}"' || exit 1
				continue
			}
			echo >>/run/rounds
		done' &
	LOAD=$!
}
rounds() { on "$HOST" sh -c 'cat /run/rounds 2>/dev/null | wc -l'; }
past() { [ "$(rounds)" -ge "$1" ] || ! kill -0 "$LOAD" 2>/dev/null; }

# verified WHEN: waits until a file whose writing began after now has been written and read back.
verified() {
	local goal=$(($(rounds) + 2))
	within 240 past "$goal" || fail "no file can be written $1"
	[ "$(rounds)" -ge "$goal" ] || fail "the data read differs from the data written $1"
}

# unload: ends the load.
unload() {
	on "$HOST" touch /run/enough
	wait "$LOAD" || fail "the data read differs from the data written"
}

# scsi_disk: checks that a file system on the disk that the test's `connect` finds survives the removal of the target
# group $GROUP under load (`lost`, `live`) and `disconnect`, and that nothing remains after the test's `cleanup`.
scsi_disk() {
	connect
	# Of iSER: it prefers IP checksums in memory, which the RNIC makes CRCs on the wire.
	protected IP
	file_system
	load
	verified "at all"
	target "echo 0 >$GROUP/enable"
	lost "the target is gone"
	target "echo 1 >$GROUP/enable"
	live "the target does"
	verified "after the target was gone"
	unload

	on "$HOST" umount /run/storage
	disconnect
	connect
	disk_has_data
	disconnect
	cleanup
	clean
}

# reload VM: removes the driver and loads it again.
reload() {
	on -t 200 "$1" rmmod vrnic || fail "the driver of VM $1 cannot be removed"
	on "$1" modprobe vrnic
	[ "$(lab ready "$1")" = "$GID_INDEX" ] || fail "the addresses of VM $1 have changed"
}

# clean: checks that both VMs have the same RDMA objects as at the start, and that their drivers can be removed.
clean() {
	local vm
	for vm in a b; do
		within 40 as_before $vm || fail "VM $vm had ${objects_before[$vm]}, and has $(objects $vm)"
		reload $vm
	done
}
