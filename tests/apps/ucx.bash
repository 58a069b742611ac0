# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# UCX's own programs, between a VM with Debian's kernel and one with the lab's.

ucx_devices() {
	local vm transport
	for vm in "${VMS[@]}"; do
		for transport in rc_verbs ud_verbs; do
			on "$vm" sh -c "ucx_info -d | grep -A 1 'Transport: $transport' | grep 'Device: $device:1'" ||
				fail "VM $vm has no $transport"
		done
	done
}
# perftest ENDS ARGUMENTS...: both ends get ENDS, the client ARGUMENTS. With -P 0 Debian's build, which is for MPI, has a
# server and a client.
perftest() {
	local ends=$1
	saying '^Final:' served debian1 13337 "$ends" lab1 "$ends 10.77.0.1 ${*:2}"
}
# uct TRANSPORT ARGUMENTS...
uct() { perftest "env ${UD[*]} ucx_perftest -P 0 -d $device:1 -x $1" "${@:2}"; }
ucx_rc() {
	local test
	for test in am_lat am_bw put_lat put_bw add_lat fadd cswap; do uct rc_verbs -t $test -n 200 -w 10 -s 8; done
	for test in am_bw put_bw get_bw; do uct rc_verbs -t $test -D zcopy -n 200 -w 10 -s 8000; done
}
ucx_ud() {
	uct ud_verbs -t am_lat -n 200 -w 10 -s 8
	uct ud_verbs -t am_bw -D bcopy -n 1000 -w 10 -s 1000
}
ucx_protocols() {
	local test command="env ${UD[*]} UCX_TLS=rc,self UCX_NET_DEVICES=$device:1 ucx_perftest -P 0"
	for test in tag_lat tag_bw tag_sync_lat stream_bw ucp_am_bw ucp_put_bw ucp_get; do
		perftest "$command" -t $test -n 100 -w 10 -s 65536
	done
	for test in ucp_add ucp_fadd ucp_swap ucp_cswap; do perftest "$command" -t $test -n 200 -w 10 -s 8; done
}
program 0 'ucx_info -d' ucx_devices
program 4800000 'ucx_perftest, rc_verbs' ucx_rc
program 1000000 'ucx_perftest, ud_verbs' ucx_ud
program 45000000 'ucx_perftest, UCP over RC' ucx_protocols
