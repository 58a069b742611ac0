# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# perftest works between two VMs with other options than its defaults, which distribution-programs covers: transports,
# path MTUs, inline and immediate data, events, shared receives, many queue pairs, both directions, depth of reads, the
# older posting interface, durations, rdma_cm.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=600
. "$LAB_LIB"

matrix() {
	cat <<-EOF
		ib_send_bw -n 100 -c UC
		ib_send_bw -n 100 -c UD
		ib_send_bw -n 100 -c XRC
		ib_read_bw -n 100 -s 65536 -c XRC
		ib_atomic_bw -n 100 -c XRC
		ib_send_bw -n 100 -e
		ib_send_lat -n 100 -c UD -e
		ib_write_bw -n 100 --write_with_imm
		ib_send_lat -n 100 -I 64 -s 64
		ib_write_bw -n 100 -s 65536 -b
		ib_send_bw -n 100 -q 8
		ib_send_bw -n 100 --use-srq -r 64
		ib_read_bw -n 100 -s 65536 -o 4
		ib_read_lat -n 100 -o 1
		ib_atomic_bw -n 100 -o 4
		ib_write_bw -n 100 -s 65536 -m 256
		ib_write_bw -n 100 -s 65536 --use_old_post_send
		ib_read_bw -D 2 -s 65536
		ib_send_bw -n 5 -a
		ibv_rc_pingpong -n 100 -N -e -c
		ibv_uc_pingpong -n 100 -e
		ibv_srq_pingpong -n 100 -e
	EOF
	! thorough || cat <<-EOF
		ib_write_lat -n 100 -c UC
		ib_send_lat -n 100 -c XRC
		ib_write_bw -n 100 -c XRC
		ib_write_lat -n 100 -c XRC
		ib_send_bw -n 100 -c XRC --use_old_post_send
		ib_send_lat -n 100 -e
		ib_write_lat -n 100 --write_with_imm
		ib_write_lat -n 100 -I 64 -s 64
		ib_read_bw -n 100 -s 65536 -q 8
		ib_read_bw -n 100 -s 65536 -m 256
		ib_send_bw -n 100 -s 65536 -m 4096
		ib_send_lat -n 100 --use_old_post_send
		ib_write_bw -D 2
		ib_read_bw -n 5 -a
		ibv_rc_pingpong -n 100 -c
		ibv_rc_pingpong -n 100 -N
		ibv_ud_pingpong -n 100 -e
	EOF
}

managed_matrix() {
	cat <<-EOF
		ib_send_bw -n 100
		ib_write_bw -n 100 -s 65536
		ib_read_lat -n 100
		ib_atomic_bw -n 100
		ib_send_lat -n 100 -c UD
	EOF
}

while read -r -a words; do
	perf a b "${words[@]}" >/dev/null || fail "${words[*]}"
done < <(matrix)
# Connected by rdma_cm.
while read -r -a words; do
	managed b a "$IP_b" "${words[@]}"
done < <(managed_matrix)
