# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Open MPI, four processes.

# mpi COMMAND...: starts it in the four VMs, or on other hosts if $hosts names them. mpirun counts its own VM only by
# its name.
mpi() {
	on debian1 mpirun --allow-run-as-root --bind-to none -np 4 --host "${hosts:-debian1,10.77.0.2,10.77.0.3,10.77.0.4}" \
		--mca plm_ssh_args '-o StrictHostKeyChecking=no -o LogLevel=ERROR' "$@"
}
# over_ucx TRANSPORT PROGRAM SETTING...: UCX says which transport it chose; it must be this one, on the RNIC.
over_ucx() {
	local transport=$1 program=$2 setting settings=()
	for setting in UCX_TLS="$1,self" UCX_NET_DEVICES="$device:1" UCX_LOG_LEVEL=info "${@:3}"; do
		settings+=(-x "$setting")
	done
	saying "inter-node .*${transport}_verbs/$device:1" saying '4 ranks, each element right' \
		mpi --mca pml ucx --mca osc ucx "${settings[@]}" python3 "/vrnic/tests/apps/$program"
}
# UCX makes all connections by UD. There it gives up after 30 seconds by default, however slow the VMs are; and what its
# check of GIDs takes for the kind of a packet, only mlx5 puts there.
UD=(UCX_UD_TIMEOUT=600s UCX_UD_ETH_DGID_CHECK=n)
# dissect CAPTURE FILTER ARGUMENT...: runs tshark on a capture of InfiniBand packets.
dissect() {
	tshark -n -r "$1" -o 'uat:user_dlts:"User 0 (DLT=147)","infiniband","0","","0",""' -Y "${@:2}" 2>"$1.said" ||
		fail "tshark: $(cat "$1.said")"
}
# On InfiniBand, UCX addresses connections by LIDs: a capture of debian1 has none with a global route, and data to the LIDs
# of all others.
mpi_rc() {
	local capture=$out/$path/mpi.pcapng lid global lids
	[ $path = infiniband ] || { over_ucx rc collectives.py "${UD[@]}"; return; }
	VRNIC_CONTROL=$("$LAB_BIN" ctl --lab "$lab" control)
	export VRNIC_CONTROL
	"$(dirname "$LAB_BIN")/vrnicctl" capture start -d debian1 -c 5000 "$capture"
	over_ucx rc collectives.py "${UD[@]}"
	"$(dirname "$LAB_BIN")/vrnicctl" capture stop >/dev/null || :
	# Wireshark maps no link type to InfiniBand (Documentation/infiniband.rst).
	editcap -T user0 "$capture" "$capture.user"
	lid=$(on debian1 cat /sys/class/infiniband/$device/ports/1/lid)
	global=$(dissect "$capture.user" 'infiniband.bth.opcode < 0x20 && infiniband.grh')
	[ -z "$global" ] || fail "UCX uses GIDs"
	lids=$(dissect "$capture.user" "infiniband.bth.opcode < 0x20 && infiniband.lrh.slid == $((lid))" -T fields \
		-e infiniband.lrh.dlid | sort -u | wc -l)
	[ "$lids" = 3 ] || fail "debian1 has connections to $lids LIDs, not to those of the three other VMs"
}
mpi_ud() { over_ucx ud collectives.py "${UD[@]}"; }
# Without UCX_FENCE_MODE=weak, UCX asks for a flush that it has for mlx5 only, reports that this fails, and goes on.
mpi_one_sided() { over_ucx rc one_sided.py "${UD[@]}" UCX_FENCE_MODE=weak; }
mpi_gid_check() { over_ucx rc collectives.py; }
# ofi_rxm connects through rdma_cm. On InfiniBand, only the VMs with Debian's kernel have addresses for that.
mpi_libfabric() {
	local hosts=
	[ $path != infiniband ] || hosts=debian1:2,10.77.0.2:2
	saying '4 ranks, each element right' mpi --mca pml cm --mca mtl ofi -x FI_PROVIDER='verbs;ofi_rxm' \
		python3 /vrnic/tests/apps/collectives.py
}
# 4 ranks, each of which sends at least 100000 elements of 8 bytes to each other.
program 9600000 'Open MPI over UCX, RC: allreduce, alltoall' mpi_rc
program 9600000 'Open MPI over UCX, UD: allreduce, alltoall' mpi_ud
program 1920000 'Open MPI over UCX, RC: put, get, atomics' mpi_one_sided
program 9600000 'Open MPI over libfabric: allreduce, alltoall' mpi_libfabric
fails rxe 'No components were able to be opened in the pml framework' 'ofi_rxm cannot enable an endpoint on Soft-RoCE (EINVAL)'
program 9600000 'Open MPI over UCX without UCX_UD_ETH_DGID_CHECK=n' mpi_gid_check
fails 'local roce rxe' 'UD endpoint .* unhandled timeout error' \
	'UCX 1.18 drops every UD packet over IPv4 unless an mlx5 device received it (openucx/ucx pull request 10209)'
