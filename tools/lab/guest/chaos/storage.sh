#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The kernel's storage protocols as a workload of `vrnic-lab chaos`. usage: storage.sh nvme|nfs|iser|srp server|client
#
# The server exports a RAM disk, or a directory, and listens on port 7999 once it does. The client calls there, mounts it or
# connects to it, has fio write a file, read it back and check each block, and lets go. Then it hangs up, and the server
# undoes all that it did. Both do so too if something fails.
set -u
protocol=$1 side=$2
config=/sys/kernel/config nqn=nqn.2026-01.test:chaos iqn=iqn.2026-01.test:chaos
core=$config/target/core/iblock_0 backstore=$config/target/core/iblock_0/ram
# listen: tells the caller the GUID of the device, and waits until it hangs up.
listen() {
	python3 -c 'import socket, sys
caller, _ = socket.create_server(("", 7999)).accept()
caller.sendall(sys.argv[1].encode() + b"\n")
caller.recv(1)' "$(tr -d : <"/sys/class/infiniband/$DEV/node_guid")"
}
# soon COMMAND...: repeats the command until it succeeds, for 15 seconds.
soon() {
	local end=$((SECONDS + 15))
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.2
	done
}
disk() { modprobe brd rd_nr=1 rd_size=32768; }
configured() { mountpoint -q $config || mount -t configfs none $config; }
backed() {
	configured
	disk
	modprobe -a target_core_mod target_core_iblock
	mkdir -p $backstore
	echo udev_path=/dev/ram0 >$backstore/control
	echo 1 >$backstore/enable
}

nvme_export() {
	local subsystem=$config/nvmet/subsystems/$nqn port=$config/nvmet/ports/1
	configured
	disk
	modprobe nvmet-rdma
	mkdir -p $subsystem/namespaces/1 $port
	echo 1 >$subsystem/attr_allow_any_host
	echo /dev/ram0 >$subsystem/namespaces/1/device_path
	echo 1 >$subsystem/namespaces/1/enable
	echo rdma >$port/addr_trtype
	echo ipv4 >$port/addr_adrfam
	echo "$SERVER" >$port/addr_traddr
	echo 4420 >$port/addr_trsvcid
	ln -s $subsystem $port/subsystems/$nqn
}
nvme_unexport() {
	local subsystem=$config/nvmet/subsystems/$nqn port=$config/nvmet/ports/1
	rm $port/subsystems/$nqn
	rmdir $port
	echo 0 >$subsystem/namespaces/1/enable
	rmdir $subsystem/namespaces/1 $subsystem
	modprobe -r -w 20000 nvmet-rdma nvmet brd
}
nvme_disk() { DISK=$(echo /dev/nvme*n1) && [ -b "$DISK" ]; }
nvme_connect() {
	modprobe nvme-rdma
	printf '%s' "transport=rdma,traddr=$SERVER,trsvcid=4420,nqn=$nqn,reconnect_delay=1,ctrl_loss_tmo=15" >/dev/nvme-fabrics &&
		soon nvme_disk
}
nvme_disconnect() {
	for controller in /sys/class/nvme/nvme*; do echo 1 >"$controller/delete_controller"; done
	modprobe -r -w 20000 nvme-rdma
}

nfs_export() {
	modprobe -a nfsd rpcrdma
	mount -t tmpfs none /var/lib/nfs
	mkdir -p /var/lib/nfs/nfsdcld /run/rpc_pipefs /run/export
	touch /var/lib/nfs/etab /var/lib/nfs/rmtab
	mountpoint -q /run/rpc_pipefs || mount -t rpc_pipefs none /run/rpc_pipefs
	mount -t tmpfs none /run/export
	mountpoint -q /proc/fs/nfsd || mount -t nfsd none /proc/fs/nfsd
	nfsdcld && rpc.mountd -N 3 && exportfs -o rw,no_root_squash,insecure,fsid=0 '*:/run/export' && rpc.nfsd -N 3 --rdma=20049 4
}
nfs_unexport() {
	exportfs -ua
	rpc.nfsd 0
	pkill -x rpc.mountd
	pkill -x nfsdcld
	umount /proc/fs/nfsd /run/export /run/rpc_pipefs /var/lib/nfs
	modprobe -r -w 20000 rpcrdma nfsd
}
nfs_connect() {
	modprobe -a nfsv4 rpcrdma
	mkdir -p /run/storage
	mount -t nfs4 -o proto=rdma,port=20049,soft,timeo=50,retrans=2 "$SERVER:/" /run/storage && DISK=/run/storage/file
}
nfs_disconnect() {
	umount -f -l /run/storage
	modprobe -r -w 20000 nfsv4 rpcrdma
}

iser_export() {
	local group=$config/target/iscsi/$iqn/tpgt_1
	backed
	modprobe -a iscsi_target_mod ib_isert
	mkdir -p $config/target/iscsi
	mkdir -p $group/lun/lun_0 "$group/np/$SERVER:3260"
	ln -s $backstore $group/lun/lun_0/ram
	echo 1 >"$group/np/$SERVER:3260/iser"
	for setting in authentication=0 demo_mode_write_protect=0 generate_node_acls=1 cache_dynamic_acls=1; do
		echo "${setting#*=}" >"$group/attrib/${setting%=*}"
	done
	echo 1 >$group/enable
}
iser_unexport() {
	local group=$config/target/iscsi/$iqn/tpgt_1
	echo 0 >$group/enable
	rm $group/lun/lun_0/ram
	rmdir $group/lun/lun_0 "$group/np/$SERVER:3260" $group $config/target/iscsi/$iqn $backstore $core $config/target/iscsi
	modprobe -r -w 20000 ib_isert iscsi_target_mod target_core_iblock brd
}
iser_disk() { DISK=/dev/$(basename /sys/class/iscsi_session/session*/device/target*/*/block/sd*) && [ -b "$DISK" ]; }
iser_connect() {
	modprobe -a ib_iser sd_mod
	mount -t tmpfs none /var/lib/iscsi
	mount -t tmpfs none /etc/iscsi
	echo InitiatorName=iqn.2026-01.test:host >/etc/iscsi/initiatorname.iscsi
	touch /etc/iscsi/iscsid.conf
	mkdir -p /run/lock
	iscsid
	iscsiadm -m node -T $iqn -p "$SERVER" -I iser -o new &&
		iscsiadm -m node -T $iqn -p "$SERVER" -o update -n node.session.timeo.replacement_timeout -v 5 &&
		iscsiadm -m node -T $iqn --login && soon iser_disk
}
iser_disconnect() {
	iscsiadm -m node --logout
	iscsiadm -k 0
	umount /etc/iscsi /var/lib/iscsi
	modprobe -r -w 20000 ib_iser
}

srp_names() {
	# A port is called by the lower half of its first GID, and the initiator by the target's address.
	guid=$(cut -d: -f5- "/sys/class/infiniband/$DEV/ports/1/gids/0")
	group=$config/target/srpt/$guid/$guid
	acl=$group/acls/$SERVER
}
srp_export() {
	srp_names
	backed
	modprobe ib_srpt
	mkdir -p $config/target/srpt
	mkdir -p "$group/lun/lun_0" "$acl/lun_0"
	ln -s $backstore "$group/lun/lun_0/ram"
	ln -s "$group/lun/lun_0" "$acl/lun_0/ram"
	echo 1 >"$group/enable"
	echo 3264 >$config/target/srpt/discovery_auth/rdma_cm_port
}
srp_unexport() {
	srp_names
	echo 0 >"$group/enable"
	echo 0 >$config/target/srpt/discovery_auth/rdma_cm_port
	rm "$acl/lun_0/ram" "$group/lun/lun_0/ram"
	rmdir "$acl/lun_0" "$acl" "$group/lun/lun_0" "$group" "$config/target/srpt/$guid" $backstore $core $config/target/srpt
	modprobe -r -w 20000 ib_srpt target_core_iblock brd
}
srp_disk() { DISK=/dev/$(basename /sys/class/srp_remote_ports/port*/device/../target*/*/block/sd*) && [ -b "$DISK" ]; }
srp_connect() {
	modprobe sd_mod
	modprobe ib_srp reconnect_delay=1 fast_io_fail_tmo=5 dev_loss_tmo=15
	echo "id_ext=$peer,ioc_guid=$peer,dest=$SERVER:3264" >"/sys/class/infiniband_srp/srp-$DEV-1/add_target" && soon srp_disk
}
srp_disconnect() {
	for port in /sys/class/srp_remote_ports/*; do echo 1 >"$port/delete"; done
	modprobe -r -w 20000 ib_srp
}

end=0
if [ "$side" = server ]; then
	"${protocol}_export" && listen || end=1
	"${protocol}_unexport" >/dev/null 2>&1
else
	exec 3<>"/dev/tcp/$SERVER/7999" && read -r peer <&3 || exit 1
	"${protocol}_connect" &&
		fio --name=verified --filename="$DISK" --size=4M --rw=randwrite --bsrange=4k-128k --ioengine=libaio --iodepth=8 \
			--direct=1 --verify=crc32c --verify_fatal=1 --randrepeat=0 --output-format=terse --terse-version=3 || end=1
	"${protocol}_disconnect" >/dev/null 2>&1
fi
exit $end
