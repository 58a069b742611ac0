#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Two instances of vrnicd run in two network namespaces, as on two hosts, with a VM each. Their networks form one
# network, for RDMA and for everything else.
# lab: timeout=300
# lab: fabric=roce
# lab: two-daemons
. "$LAB_LIB"

on a ping -c 3 -W 5 "$IP_b" >/dev/null || fail "no IPv4"
on b ping -c 3 -W 5 "$IP6_a" >/dev/null || fail "no IPv6"
on a ping -c 3 -W 5 -M do -s 8972 "$IP_b" >/dev/null || fail "no frames of 9000 bytes"
on -t 60 a ping -q -A -c 2000 -s 1000 "$IP_b" | found ' 0% packet loss' || fail "packets are lost"

perf a b ibv_rc_pingpong -n 200 >/dev/null
perf b a ib_write_bw -s 65536 -n 200 >/dev/null
perf a b ib_read_bw -s 65536 -n 100 >/dev/null
on -t 60 b rping -s -a "$IP_b" -C 20 -V &
server=$!
listening b 7174
on -t 60 a rping -c -a "$IP_b" -C 20 -V >/dev/null || fail "rping fails"
wait $server || fail "rping's server fails"
on -t 90 b vrnic-stress --device "$DEV" --gid "$GID_INDEX" --server --seconds 6 --qps 4 &
server=$!
on -t 90 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --client "$IP_b" --seconds 6 --qps 4
wait $server || fail "the server of the stress test failed"
