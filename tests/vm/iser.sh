# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# iSCSI over RDMA (iSER) works. One VM exports a RAM disk and the other has a file system on it. The data survive a
# target that goes away under load, and a logout. On one of the fabrics the disk has protection information (T10-PI),
# which both RNICs check.
# lab: needs CONFIG_INFINIBAND_ISERT=m
# lab: timeout=600
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# Linux's target syncs the header of a response for the CPU before it has mapped it (isert_create_send_desc() in
# ib_isert.c), which DMA_API_DEBUG reports.
# lab: allow-kernel-report isert_put_
. "$LAB_LIB"
. tests/vm/storage.bash
[ "$FABRIC" != local ] || ! can_protect || PROTECTED=1

IQN=iqn.2026-01.test:ram
GROUP=target/iscsi/$IQN/tpgt_1
PORTAL=$GROUP/np/$ADDRESS:3260

cleanup() {
	on "$HOST" sh -c "touch /run/enough; umount -l /run/storage; iscsiadm -m node --logout; iscsiadm -k 0
		umount /etc/iscsi /var/lib/iscsi; modprobe -r -w 20000 ib_iser"
	on "$TARGET" sh -c "cd $CONFIG; echo 0 >$GROUP/enable; rm $GROUP/lun/lun_0/ram; rmdir $GROUP/lun/lun_0 $PORTAL $GROUP target/iscsi/$IQN
		rmdir $BACKSTORE target/core/iblock_0 target/iscsi; modprobe -r -w 20000 ib_isert iscsi_target_mod target_core_iblock brd scsi_debug"
} >/dev/null 2>&1
trap cleanup EXIT

backstore
on "$TARGET" modprobe -a iscsi_target_mod ib_isert
target "mkdir -p target/iscsi; mkdir -p $GROUP/lun/lun_0 $PORTAL
	ln -s $BACKSTORE $GROUP/lun/lun_0/ram
	echo 1 >$PORTAL/iser
	cd $GROUP/attrib
	echo 0 >authentication
	echo 0 >demo_mode_write_protect
	echo 1 >generate_node_acls
	echo 1 >cache_dynamic_acls
	echo ${PROTECTED:-0} >t10_pi
	echo 1 >../enable"

on "$HOST" sh -ec "modprobe -a sd_mod; modprobe ib_iser pi_enable=${PROTECTED:-0}
	mount -t tmpfs none /var/lib/iscsi
	mount -t tmpfs none /etc/iscsi
	echo InitiatorName=iqn.2026-01.test:host >/etc/iscsi/initiatorname.iscsi
	touch /etc/iscsi/iscsid.conf
	mkdir -p /run/lock
	iscsid
	node='iscsiadm -m node -T $IQN -p $ADDRESS'
	\$node -I iser -o new
	for limit in noop_out_timeout=$((5 * LAB_SLOWNESS)) login_timeout=$((15 * LAB_SLOWNESS)); do
		\$node -o update -n node.conn[0].timeo.\${limit%=*} -v \${limit#*=}
	done" || fail "$HOST knows no target"

# connect: opens a session, with its disk as /run/disk.
connect() {
	on -t 200 "$HOST" iscsiadm -m node -T $IQN --login || fail "$HOST does not log in"
	within 100 on "$HOST" sh -ec 'ln -sfT /sys/class/iscsi_session/session* /run/session
		disk=/dev/$(basename /run/session/device/target*/*/block/sd*); test -b $disk; ln -sfT $disk /run/disk' ||
		fail "$HOST finds no disk"
}
disconnect() { on -t 200 "$HOST" iscsiadm -m node -T $IQN --logout || fail "$HOST does not log out"; }
state() { on "$HOST" grep -qx "$1" /run/session/state; }
lost() { within 120 state FAILED || fail "$HOST does not see that $1"; }
live() { within 120 state LOGGED_IN || fail "$HOST does not reconnect when $1"; }

scsi_disk
