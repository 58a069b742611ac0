# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Extended reliable connections: rdma-core's own example. A server in one VM has two clients in the other, and sends
# each client's messages through the queue pairs of both, which are in one domain. The programs poll, wait for events,
# or use on-demand paging.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=200
. "$LAB_LIB"

# pingpong PORT OPTION...
pingpong() {
	local port=$1 server first
	shift
	on b ibv_xsrq_pingpong -d "$DEV" -g "$GID_INDEX" -p "$port" -c 2 -n 100 "$@" >/dev/null &
	server=$!
	listening b "$port"
	on a ibv_xsrq_pingpong -d "$DEV" -g "$GID_INDEX" -p "$port" -n 100 "$@" "$IP_b" >/dev/null &
	first=$!
	on a ibv_xsrq_pingpong -d "$DEV" -g "$GID_INDEX" -p "$port" -n 100 "$@" "$IP_b" >/dev/null ||
		fail "a client failed: $*"
	wait $first || fail "a client failed: $*"
	wait $server || fail "the server failed: $*"
}

pingpong 18900
pingpong 18901 -e
pingpong 18902 -o
