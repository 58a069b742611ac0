# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# NVMe over Fabrics works. One VM exports a RAM disk and the other has a file system on it. The data survive a reset of
# the controller and a target that goes away, both under load, and a disconnect. Either RNIC can be removed while it is
# in use. On one of the fabrics the disk has protection information (T10-PI), which both RNICs check.
# lab: needs CONFIG_NVME_TARGET_RDMA=m
# lab: timeout=600
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# nvmet takes rdma_cm's lock while it holds that of its configuration when a port is removed, and the other way round
# when a command arrives before its connection is reported as established.
# lab: allow-kernel-report nvmet_config_sem.*handler_mutex|handler_mutex.*nvmet_config_sem
. "$LAB_LIB"
. tests/vm/storage.bash

[ "$FABRIC" != local ] || ! can_protect || PROTECTED=1

NQN=nqn.2026-01.test:ram
SUBSYSTEM=nvmet/subsystems/$NQN
PORT=nvmet/ports/1

# Whatever happens, nothing remains that could affect other tests.
cleanup() {
	on "$HOST" sh -c "touch /run/enough; umount -l /run/storage
		for c in /sys/class/nvme/nvme*/delete_controller; do echo 1 >\$c; done; modprobe -r -w 20000 nvme-rdma"
	on "$TARGET" sh -c "cd $CONFIG; rm $PORT/subsystems/$NQN; rmdir $PORT; echo 0 >$SUBSYSTEM/namespaces/1/enable
		rmdir $SUBSYSTEM/namespaces/1 $SUBSYSTEM; modprobe -r -w 20000 nvmet-rdma nvmet brd scsi_debug"
} >/dev/null 2>&1
trap cleanup EXIT

on "$HOST" modprobe nvme-rdma
# The target uses receive queues of queue pairs on one of the fabrics, and shared ones on the other.
case $FABRIC in
local) SHARED=0 ;;
*) SHARED=1 ;;
esac
on "$TARGET" modprobe nvmet-rdma use_srq=$SHARED
ram_disk
target "mkdir -p $SUBSYSTEM/namespaces/1 $PORT
	echo 1 >$SUBSYSTEM/attr_allow_any_host
	[ -z '${PROTECTED:-}' ] || echo 1 | tee $SUBSYSTEM/attr_pi_enable $PORT/param_pi_enable
	echo /run/ram >$SUBSYSTEM/namespaces/1/device_path
	echo 1 >$SUBSYSTEM/namespaces/1/enable
	echo rdma >$PORT/addr_trtype
	echo ipv4 >$PORT/addr_adrfam
	echo $ADDRESS >$PORT/addr_traddr
	echo 4420 >$PORT/addr_trsvcid"
export_it() { target "ln -s $CONFIG/$SUBSYSTEM $PORT/subsystems/$NQN"; }

# connect: creates a controller, with its namespace as /run/disk, for which the kernel scans after the controller
# exists.
connect() {
	on "$HOST" sh -c "printf transport=rdma,traddr=$ADDRESS,trsvcid=4420,nqn=$NQN,reconnect_delay=1 >/dev/nvme-fabrics" ||
		fail "$HOST does not connect"
	within 100 on "$HOST" sh -ec 'ln -sfT /sys/class/nvme/nvme* /run/controller; test -b /dev/nvme*n1; ln -sfT /dev/nvme*n1 /run/disk' ||
		fail "$HOST finds no namespace"
}
disconnect() { on -t 200 "$HOST" sh -c 'echo 1 >/run/controller/delete_controller'; }
state() { on "$HOST" grep -qx "$1" /run/controller/state; }
lost() { within 120 state connecting || fail "$HOST does not see that $1"; }
live() { within 120 state live || fail "$HOST does not reconnect when $1"; }

export_it
connect
protected CRC
shared=$(on "$TARGET" rdma resource show srq | wc -l)
[ $((shared > 0)) = $SHARED ] || fail "$TARGET has $shared shared receive queues"
file_system
load
verified "at all"
on "$HOST" sh -c 'echo 1 >/run/controller/reset_controller'
live "the controller was reset"
verified "after a reset of the controller"
target "rm $PORT/subsystems/$NQN"
lost "the target is gone"
export_it
live "the target does"
verified "after the target was gone"
unload

on "$HOST" umount /run/storage
disconnect
connect
disk_has_data
[ -z "${PROTECTED:-}" ] || on -t 60 "$HOST" python3 -c "$(cat tests/vm/nvme-protection.py)" || fail "protection information is not checked"

# The device is removed under a controller, then under the target.
reload "$HOST"
within 100 on "$HOST" sh -c '! ls /sys/class/nvme/nvme*' || fail "a controller is left without a device"
connect
reload "$TARGET"
lost "the target has another device"
target "rm $PORT/subsystems/$NQN"
export_it
live "the target listens at it"
cleanup
clean
