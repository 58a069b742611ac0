# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# libfabric's programs. With -c they check what they get.

fabric_info() {
	local vm
	for vm in "${VMS[@]}"; do
		saying "domain: $device\$" on "$vm" fi_info -p verbs -t FI_EP_MSG
	done
}
# fabric PROVIDER ENDPOINT: messages of several sizes, both ways.
fabric() {
	local size
	for size in 64 4096 1048576; do
		served debian1 47592 "fi_pingpong -p '$1' -e $2 -I 50 -c -S $size" \
			$peer "fi_pingpong -p '$1' -e $2 -I 50 -c -S $size $server"
	done
}
fabric_verbs() { fabric verbs msg; }
fabric_rxm() { fabric 'verbs;ofi_rxm' rdm; }
fabric_rxd() { fabric 'verbs;ofi_rxd' rdm; }
program 0 'fi_info -p verbs' fabric_info
program 100000000 'fi_pingpong, verbs (connections)' fabric_verbs
program 100000000 'fi_pingpong, verbs;ofi_rxm' fabric_rxm
fails rxe 'fi_enable\(\).*\(Invalid argument\)' 'ofi_rxm cannot enable an endpoint on Soft-RoCE (EINVAL)'
program 100000000 'fi_pingpong, verbs;ofi_rxd' fabric_rxd
