# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# NFS over RDMA works. One VM exports a directory, and the other writes files there and reads them back, even when the
# RNIC of either VM is removed under load and comes back.
# lab: needs CONFIG_SUNRPC_XPRT_RDMA=m
# lab: timeout=600
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
. "$LAB_LIB"
. tests/vm/storage.bash

cleanup() {
	on "$HOST" sh -c 'for events in rdma_cma sunrpc; do echo 0 >/sys/kernel/tracing/events/$events/enable; done
		touch /run/enough; umount -f -l /run/storage; modprobe -r -w 20000 nfsv4 rpcrdma'
	on "$TARGET" sh -c 'exportfs -ua; rpc.nfsd 0; pkill -x rpc.mountd; pkill -x nfsdcld
		umount /proc/fs/nfsd /run/export /run/rpc_pipefs /var/lib/nfs; modprobe -r -w 20000 rpcrdma nfsd'
} >/dev/null 2>&1
trap cleanup EXIT

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

on -t 200 "$HOST" sh -ec "mkdir -p /run/storage
	mount -t nfs4 -o proto=rdma,port=20049 $ADDRESS:/ /run/storage
	grep -q ' /run/storage nfs4 .*proto=rdma' /proc/mounts" || fail "$HOST cannot mount"
registers data
sum=$(on "$HOST" sh -c 'sha256sum </run/data')
[ "$(on "$TARGET" sh -c 'sha256sum </run/export/data')" = "$sum" ] || fail "the data of $TARGET and $HOST differ"

# If the client reconnects while its RNIC is being removed, rdma_cm returns EINVAL because the removal has taken its ID.
# Linux 7.3 returns that to the program instead of retrying (rpcrdma_create_id() and call_connect_status() in
# net/sunrpc). The trace distinguishes it from an EINVAL of the driver: it has a removal, and no queue pair whose
# creation failed.
TRACING=/sys/kernel/tracing
on "$HOST" sh -ec "mountpoint -q $TRACING || mount -t tracefs none $TRACING
	for events in rdma_cma sunrpc/rpc_connect_status; do echo 1 >$TRACING/events/\$events/enable; done"
EXCUSED="{ grep -q err=22 /run/fio && grep -q rpc_connect_status.*status=-22 $TRACING/trace &&
	grep -q cm_remove_one $TRACING/trace && ! grep -q cm_qp_create.*rc=- $TRACING/trace &&
	tail -n 30 $TRACING/trace && echo >$TRACING/trace; }"
load
verified "at all"
reload "$HOST"
verified "after the host's RNIC was removed"
reload "$TARGET"
verified "after the target's RNIC was removed"
unload
on "$HOST" umount /run/storage || fail "$HOST cannot unmount"
cleanup
clean
