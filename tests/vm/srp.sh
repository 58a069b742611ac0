# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The SCSI RDMA protocol (SRP) works. One VM exports a RAM disk and the other has a file system on it. The data
# survive a target that goes away under load, and a disconnect.
# lab: needs CONFIG_INFINIBAND_SRPT=m
# lab: timeout=600
# lab: long
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
. "$LAB_LIB"
. tests/vm/storage.bash

cleanup() {
	on "$HOST" sh -c "touch /run/enough; umount -l /run/storage
		for p in /sys/class/srp_remote_ports/*/delete; do echo 1 >\$p; done; modprobe -r -w 20000 ib_srp"
	on "$TARGET" sh -c "cd $CONFIG; echo 0 >$GROUP/enable; echo 0 >target/srpt/discovery_auth/rdma_cm_port
		rm $ACL/lun_0/ram; rmdir $ACL/lun_0 $ACL; rm $GROUP/lun/lun_0/ram; rmdir $GROUP/lun/lun_0 $GROUP target/srpt/$GUID
		rmdir $BACKSTORE target/core/iblock_0 target/srpt; modprobe -r -w 20000 ib_srpt target_core_iblock brd"
} >/dev/null 2>&1

PORT=3264
# A port is named by the lower half of its first GID.
GUID=$(on "$TARGET" cut -d: -f5- "/sys/class/infiniband/$DEV/ports/1/gids/0")
ID=$(on "$TARGET" cat "/sys/class/infiniband/$DEV/node_guid" | tr -d :)
GROUP=target/srpt/$GUID/$GUID
# ib_srpt names initiators that connect through the RDMA CM by its own address.
ACL=$GROUP/acls/$ADDRESS
trap cleanup EXIT

backstore
on "$TARGET" modprobe ib_srpt
target "mkdir -p target/srpt; mkdir -p $GROUP/lun/lun_0 $ACL/lun_0
	ln -s $BACKSTORE $GROUP/lun/lun_0/ram
	ln -s $CONFIG/$GROUP/lun/lun_0 $ACL/lun_0/ram
	echo 1 >$GROUP/enable
	echo $PORT >target/srpt/discovery_auth/rdma_cm_port"
# Requests wait for the target for as long as necessary.
on "$HOST" sh -ec 'modprobe sd_mod; modprobe ib_srp reconnect_delay=1 fast_io_fail_tmo=off dev_loss_tmo=600'

# connect: adds a port of the target, with its disk as /run/disk. The host refuses until a previous one is completely
# gone.
connect() {
	within 100 on "$HOST" sh -ec "echo id_ext=$ID,ioc_guid=$ID,dest=$ADDRESS:$PORT >/sys/class/infiniband_srp/srp-$DEV-1/add_target" ||
		fail "$HOST does not connect"
	within 100 on "$HOST" sh -ec 'ln -sfT /sys/class/srp_remote_ports/port* /run/port
		disk=/dev/$(basename /run/port/device/../target*/*/block/sd*); test -b $disk; ln -sfT $disk /run/disk' ||
		fail "$HOST finds no disk"
}
disconnect() { on -t 200 "$HOST" sh -c 'echo 1 >/run/port/delete'; }
state() { on "$HOST" grep -qx "$1" /run/port/state; }
lost() { within 120 state blocked || fail "$HOST does not see that $1"; }
live() { within 120 state running || fail "$HOST does not reconnect when $1"; }

scsi_disk
