# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Sockets over RDMA that the kernel has: SMC-R, which Debian's kernel does not have, and RDS, between the two kernels
# where both have its addresses.

smc() {
	local vm status=0
	for vm in lab1 lab2; do on "$vm" modprobe smc; done
	(served lab1 18701 'python3 /vrnic/tests/apps/smc.py server 10.77.0.3' lab2 'python3 /vrnic/tests/apps/smc.py client 10.77.0.3') ||
		status=$?
	for vm in lab1 lab2; do
		within 60 on "$vm" modprobe -r smc || fail "smc cannot be unloaded in $vm"
	done
	return $status
}
rds() {
	local vm job status=0 client=lab2 from=10.77.0.4 to=10.77.0.2
	[ $path != infiniband ] || client=debian1 from=10.99.0.1 to=10.99.0.2
	for vm in debian2 $client; do on "$vm" modprobe rds_rdma; done
	start debian2 python3 /vrnic/tests/apps/rds.py server $to
	job=$!
	within 60 on debian2 test -e /tmp/rds-server && on $client python3 /vrnic/tests/apps/rds.py client $from $to ||
		status=$?
	kill $job
	wait $job || :
	return $status
}
# 4 MiB and 6.7 MB, both ways.
program 8000000 'SMC-R' smc
not_on infiniband 'Linux has SMC-R for Ethernet only'
fails rxe 'only [0-9]+ bytes have left the RDMA devices' \
	'SMC-R needs a RoCE v1 GID unless EIDs are configured; Soft-RoCE has v2 only, and the sockets fall back to TCP'
program 13000000 'RDS' rds
# Linux 7.3.4 loses memory, and says so, when rds_rdma is unloaded while it has a connection; with Soft-RoCE too.
keeps
