# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Storage over InfiniBand. VM b uses file systems of VM a by NVMe over Fabrics and by NFS, for which rdma_cm finds paths
# by IPoIB addresses, and by SRP, whose target srp_daemon finds on the subnet. NFS also works over TCP over IPoIB. The
# test checks that data read back as written.
# lab: needs CONFIG_INFINIBAND_IPOIB=m
# lab: needs CONFIG_NVME_TARGET_RDMA=m
# lab: needs CONFIG_INFINIBAND_SRPT=m
# lab: fabric=infiniband
# lab: timeout=900
# ib_core keeps completion queues that kernel users share. The test itself checks that all other objects are gone.
# lab: allow-leaks
. "$LAB_LIB"
. tests/vm/storage.bash

NQN=nqn.2026-01.test:ram
SUBSYSTEM=nvmet/subsystems/$NQN
NVME_PORT=nvmet/ports/1
# Ports are named after the lower halves of their first GIDs.
guid() { on "$1" cut -d: -f5- "/sys/class/infiniband/$DEV/ports/1/gids/0"; }
GUID=$(guid "$TARGET")
GROUP=target/srpt/$GUID/$GUID
ACL=$GROUP/acls/$(guid "$HOST")

cleanup() {
	on "$HOST" sh -c 'pkill -x srp_daemon; umount -f -l /run/storage
		for c in /sys/class/nvme/nvme*/delete_controller; do echo 1 >$c; done
		for p in /sys/class/srp_remote_ports/*/delete; do echo 1 >$p; done
		modprobe -r -w 20000 nvme-rdma; modprobe -r -w 20000 ib_srp; modprobe -r -w 20000 nfsv4 rpcrdma'
	on "$TARGET" sh -c "exportfs -ua; rpc.nfsd 0; pkill -x rpc.mountd; pkill -x nfsdcld
		umount /proc/fs/nfsd /run/export /run/rpc_pipefs /var/lib/nfs; modprobe -r -w 20000 rpcrdma nfsd
		cd $CONFIG; rm $NVME_PORT/subsystems/$NQN; rmdir $NVME_PORT; echo 0 >$SUBSYSTEM/namespaces/1/enable
		rmdir $SUBSYSTEM/namespaces/1 $SUBSYSTEM; echo 0 >$GROUP/enable
		rm $ACL/lun_0/ram; rmdir $ACL/lun_0 $ACL; rm $GROUP/lun/lun_0/ram; rmdir $GROUP/lun/lun_0 $GROUP target/srpt/$GUID
		rmdir $BACKSTORE target/core/iblock_0 target/srpt
		modprobe -r -w 20000 nvmet-rdma nvmet; modprobe -r -w 20000 ib_srpt target_core_iblock brd"
	for vm in a b; do on $vm modprobe -r ib_ipoib; done
} >/dev/null 2>&1
trap cleanup EXIT

# IP over InfiniBand, by whose addresses rdma_cm finds paths.
for vm in a b; do
	address=IP_$vm
	on $vm sh -ec "modprobe ib_ipoib; ip link set ib0 up; ip addr add 10.99.0.${!address##*.}/24 dev ib0"
done
ADDRESS=10.99.0.${ADDRESS##*.}
within 30 on "$HOST" ping -c 1 -W 2 "$ADDRESS" >/dev/null || fail "IPoIB carries no traffic"

# NVMe over Fabrics.
on "$HOST" modprobe nvme-rdma
on "$TARGET" modprobe nvmet-rdma
ram_disk
target "mkdir -p $SUBSYSTEM/namespaces/1 $NVME_PORT
	echo 1 >$SUBSYSTEM/attr_allow_any_host
	echo /run/ram >$SUBSYSTEM/namespaces/1/device_path
	echo 1 >$SUBSYSTEM/namespaces/1/enable
	echo rdma >$NVME_PORT/addr_trtype
	echo ipv4 >$NVME_PORT/addr_adrfam
	echo $ADDRESS >$NVME_PORT/addr_traddr
	echo 4420 >$NVME_PORT/addr_trsvcid
	ln -s $CONFIG/$SUBSYSTEM $NVME_PORT/subsystems/$NQN"
on "$HOST" sh -c "printf transport=rdma,traddr=$ADDRESS,trsvcid=4420,nqn=$NQN >/dev/nvme-fabrics" || fail "$HOST does not connect"
within 100 on "$HOST" sh -ec 'test -b /dev/nvme*n1; ln -sfT /dev/nvme*n1 /run/disk' || fail "$HOST finds no namespace"
file_system
on "$HOST" umount /run/storage
disk_has_data
on -t 200 "$HOST" sh -c 'echo 1 >"$(echo /sys/class/nvme/nvme*/delete_controller)"'
target "rm $NVME_PORT/subsystems/$NQN; echo 0 >$SUBSYSTEM/namespaces/1/enable"

# SRP. srp_daemon is told by the subnet manager of ports that become targets, and asks them what they have.
on "$HOST" sh -ec 'modprobe sd_mod; modprobe ib_srp; mkdir -p /run/lock'
on -t 200 "$HOST" sh -c "stdbuf -oL srp_daemon -c -V -i $DEV -p 1 >/run/targets 2>&1" &
daemon=$!
targets() { on "$HOST" cat /run/targets; }
within 60 on "$HOST" grep -q 'performing a capability query' /run/targets || fail "srp_daemon has not searched: $(targets)"
backstore
on "$TARGET" modprobe ib_srpt
ID=$(on "$TARGET" cat /sys/module/ib_srpt/parameters/srpt_service_guid | sed 's/^0x//')
GID=$(on "$TARGET" cat "/sys/class/infiniband/$DEV/ports/1/gids/0" | tr -d :)
login="id_ext=$ID,ioc_guid=$ID,dgid=$GID,pkey=ffff,service_id=$ID"
within 30 on "$HOST" grep -q "^$login" /run/targets || fail "srp_daemon is told of no target $login: $(targets)"
on "$HOST" grep -q 'enter handle_port' /run/targets || fail "srp_daemon finds the target by another way: $(targets)"
on "$HOST" pkill -x srp_daemon
wait $daemon || fail "srp_daemon ends with an error: $(targets)"
target "mkdir -p target/srpt; mkdir -p $GROUP/lun/lun_0 $ACL/lun_0
	ln -s $BACKSTORE $GROUP/lun/lun_0/ram
	ln -s $CONFIG/$GROUP/lun/lun_0 $ACL/lun_0/ram
	echo 1 >$GROUP/enable"
# Without having been told, it finds targets by queries, and logs in. Then it has nothing more to do.
search="srp_daemon -o -c -e -i $DEV -p 1"
on "$HOST" $search | found "^$login" || fail "srp_daemon does not find the target"
within 100 on "$HOST" sh -ec 'ln -sfT /sys/class/srp_remote_ports/port* /run/port
	disk=/dev/$(basename /run/port/device/../target*/*/block/sd*); test -b $disk; ln -sfT $disk /run/disk' || fail "$HOST finds no disk"
said=$(on "$HOST" $search) || fail "srp_daemon does not search again"
[ -z "$said" ] || fail "srp_daemon does not see that the host is connected: $said"
file_system
on "$HOST" umount /run/storage
disk_has_data
on -t 200 "$HOST" sh -c 'echo 1 >/run/port/delete'

# NFS over RDMA and over TCP, while IPoIB sends datagrams and while it has connections.
on "$HOST" modprobe -a nfsv4 rpcrdma
on -t 200 "$TARGET" sh -ec 'modprobe -a nfsd rpcrdma
	mount -t tmpfs none /var/lib/nfs
	mkdir -p /var/lib/nfs/nfsdcld /run/rpc_pipefs /run/export
	touch /var/lib/nfs/etab /var/lib/nfs/rmtab
	mountpoint -q /run/rpc_pipefs || mount -t rpc_pipefs none /run/rpc_pipefs
	mount -t tmpfs none /run/export
	mountpoint -q /proc/fs/nfsd || mount -t nfsd none /proc/fs/nfsd
	nfsdcld
	rpc.mountd -N 3
	exportfs -o rw,no_root_squash,insecure,fsid=0 "*:/run/export"
	rpc.nfsd -N 3 --rdma=20049 4' || fail "$TARGET has no exports"
# nfs PROTOCOL PORT COMMAND...: runs a command while the host has mounted the export by this protocol.
nfs() {
	on -t 200 "$HOST" sh -ec "mkdir -p /run/storage
		mount -t nfs4 -o proto=$1,port=$2 $ADDRESS:/ /run/storage
		grep -q ' /run/storage nfs4 .*proto=$1' /proc/mounts" || fail "$HOST cannot mount by $1"
	"${@:3}"
	[ "$(on "$TARGET" sh -c 'sha256sum </run/export/data')" = "$(on "$HOST" sh -c 'sha256sum </run/data')" ] ||
		fail "the data of $TARGET and $HOST differ"
	on "$HOST" umount /run/storage || fail "$HOST cannot unmount"
}
for mode in datagram connected; do
	for vm in a b; do on $vm sh -ec "echo $mode >/sys/class/net/ib0/mode" || fail "IPoIB has no mode $mode"; done
	within 30 on "$HOST" ping -c 1 -W 2 "$ADDRESS" >/dev/null || fail "IPoIB carries no traffic in mode $mode"
	nfs rdma 20049 registers data
	nfs tcp 2049 data
done
cleanup
for vm in a b; do
	within 40 as_before $vm || fail "VM $vm had ${objects_before[$vm]}, and has $(objects $vm)"
done
