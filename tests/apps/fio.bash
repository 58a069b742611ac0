# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# fio's engine rdma: its server reads, its client writes, by the verb that is asked for.

# fio_rdma VERB BLOCKS DEPTH DEPTH: how many blocks of 64 KiB, and how many the client and the server have in work.
fio_rdma() {
	local job="--name=job --ioengine=rdma --port=18710 --bs=65536 --size=$(($2 * 65536))"
	served debian1 18710 "timeout 300 fio $job --rw=read --iodepth=$4" \
		$peer "timeout 300 fio $job --rw=write --verb=$1 --iodepth=$3 --hostname=$server"
}
fio_write() { fio_rdma write 256 8 8; }
fio_read() { fio_rdma read 256 8 8; }
# fio asks that a SEND be not repeated when no receive is there, waits half a second for its peer to post receives, and
# hangs if that was too short. So the peer may post all at once, and a slow VM may try again.
fio_send() {
	local try said
	for try in 1 2 3 4 5; do
		if said=$(fio_rdma send 64 1 128 2>&1); then
			echo "$said"
			return
		fi
		echo "$said"
		[[ $said == *'RNR retry counter exceeded'* ]] || break
	done
	fail "fio did not send"
}
program 16777216 'fio, ioengine=rdma, verb=write' fio_write
program 16777216 'fio, ioengine=rdma, verb=read' fio_read
program 4194304 'fio, ioengine=rdma, verb=send' fio_send
