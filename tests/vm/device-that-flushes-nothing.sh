# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A device has failed if it moves a kernel queue pair to the error state, but does not flush it or does not report the
# flushes. Otherwise, a drain of the queue pair would never end, and neither would unbinding the driver.
# lab: fabric=local
# lab: timeout=300
. "$LAB_LIB"

virtio=$(bound a)

# drains FAULT... -- COMMAND...: the command, which drains the queue pair, ends although the device has the fault.
drains() {
	local stalls fault=()
	while [ "$1" != -- ]; do
		fault+=("$1")
		shift
	done
	shift
	on a modprobe vrnic-drain
	stalls=$(logged a "it does not flush a queue pair")
	vrnicctl fault add -d a "${fault[@]}" >/dev/null
	on -t 120 a "$@" || fail "${fault[0]}: the kernel waits for the device"
	vrnicctl fault clear >/dev/null
	on a dmesg | tail -n 40 | found "drained: 16 receives flushed, .* 0 others" || fail "${fault[0]}: the kernel's receives were not flushed"
	logs a "it does not flush a queue pair" "$stalls" || fail "${fault[0]}: the device flushed the queue pair"
}

drains stuck -- modprobe -r vrnic-drain
within 60 logs a "restarting the device" 0 || fail "the driver did not restart the device"
active a
drains cq-event-lost count=all -- sh -c "echo $virtio >/sys/bus/virtio/drivers/vrnic/unbind"
on a modprobe -r vrnic-drain
driver a bind "$virtio"
active a
on -t 60 a vrnic-stress --device "$DEV" --seconds 2
