# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Network namespaces that stand for hosts in VM tests. Sourced after the lab's library.

around=() into=()
[ "$(id -u)" = 0 ] || { around=(--user --map-root-user) into=(--user --preserve-credentials); }
# Processes that keep the namespaces alive. The test must end them.
pids=()
# at PID COMMAND...: runs a command in the namespaces of this process.
at() { nsenter --target "$1" "${into[@]}" --net -- "${@:2}"; }
# other_net PID [PID]: checks whether the first process is in another network namespace than the second, or than this
# one.
other_net() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink "/proc/${2:-$$}/ns/net")" ]; }
# lab_of HOST COMMAND...: runs the lab's program with the labs of this host.
lab_of() { XDG_RUNTIME_DIR=$LAB_DIR/run-$1 "$LAB_BIN" "${@:2}" </dev/null; }
# first_host: creates a namespace and sets `host` to its process.
first_host() {
	unshare "${around[@]}" --net sleep infinity &
	host=$!
	pids+=($host)
	within 10 other_net $host || fail "no network namespace"
}
# next_host PID NAME: creates another namespace next to that of PID, and sets `host` to its process.
next_host() {
	at "$1" unshare --net sh -c 'echo $$ >"$1" && exec sleep infinity' sh "$LAB_DIR/pid-$2" &
	pids+=($!)
	within 10 test -s "$LAB_DIR/pid-$2" || fail "no network namespace for $2"
	host=$(cat "$LAB_DIR/pid-$2")
	pids+=("$host")
}
