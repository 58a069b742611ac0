# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# NFS over RDMA works. One VM exports a directory, and the other writes files there and reads them back, also when the
# RNIC of either VM is removed under load and comes back.
# lab: timeout=600
# lab: fabric=local
# lab: fabric=roce
. "$LAB_LIB"
. tests/vm/storage.bash

cleanup() {
	on "$HOST" sh -c 'touch /run/enough; umount -f -l /run/storage; modprobe -r -w 20000 nfsv4 rpcrdma'
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
	rpc.nfsd -N 3 --rdma=20049 4' || fail "$TARGET exports nothing"

on -t 200 "$HOST" sh -ec "mkdir -p /run/storage
	mount -t nfs4 -o proto=rdma,port=20049 $ADDRESS:/ /run/storage
	grep -q ' /run/storage nfs4 .*proto=rdma' /proc/mounts" || fail "$HOST cannot mount"
registers data
sum=$(on "$HOST" sh -c 'sha256sum </run/data')
[ "$(on "$TARGET" sh -c 'sha256sum </run/export/data')" = "$sum" ] || fail "$TARGET has other data than $HOST"

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
