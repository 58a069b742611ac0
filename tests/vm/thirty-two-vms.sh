#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A lab with as many VMs as there can be: all come up on one network, run commands at the same time, and exchange
# messages with their neighbours in a ring. When the lab is down, no process and no file of it is left.
# lab: long
# lab: crowd
# lab: timeout=1800
. "$LAB_LIB"

# The kernels of `make test-debug` and `make test-races` need more memory, and are too slow for so many.
count=32 memory=256
[ "$LAB_SLOWNESS" -lt 10 ] || count=4 memory=1024

export XDG_RUNTIME_DIR=$LAB_DIR/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
trap '"$LAB_BIN" down many >/dev/null 2>&1 || :' EXIT
# everywhere SCRIPT: runs a script in all VMs at the same time, and prints `VM: line` for each line.
everywhere() { "$LAB_BIN" exec --lab many --all --timeout 300 -- sh -c "$1" </dev/null; }

cat >"$LAB_DIR/many.toml" <<end
memory = $memory
cpus = 1
[[vm]]
name = "node"
count = $count
end
start=$SECONDS
"$LAB_BIN" up "$LAB_DIR/many.toml" >"$LAB_DIR/up" 2>&1 || fail "$(tail -n 20 "$LAB_DIR/up")"
echo "$count VMs are up after $((SECONDS - start)) s"
"$LAB_BIN" status many >"$LAB_DIR/status"
up=$(grep -c '^node[0-9]* *up ' "$LAB_DIR/status" || :)
[ "$up" = "$count" ] || fail "$up VMs are up: $(cat "$LAB_DIR/status")"
pids=("$("$LAB_BIN" ctl --lab many pid vrnicd)")
for n in $(seq "$count"); do pids+=("$("$LAB_BIN" ctl --lab many pid "qemu-node$n")"); done

everywhere hostname | sort -V >"$LAB_DIR/names"
seq "$count" | sed 's/.*/node&: node&/' | diff - "$LAB_DIR/names" || fail "the command did not run in all VMs"

# Each VM has a server for the VM before it, and is the client of the next one.
pingpong='cd /sys/class/infiniband/vrnic0/ports/1
for gid in $(seq 0 15); do
	case $(cat gids/$gid):$(cat gid_attrs/types/$gid) in 0000:0000:0000:0000:0000:ffff:*v2) break; esac
done
pingpong="ibv_rc_pingpong -d vrnic0 -g $gid -p 18600 -n 100"'
everywhere "$pingpong"'
setsid sh -c "$pingpong; echo \$? >/tmp/exit" </dev/null >/tmp/server 2>&1 &
until [ -n "$(ss -Hltn sport = :18600)" ]; do sleep 0.2; done' || fail "no server listens in a VM"
start=$SECONDS
everywhere "$pingpong"'
n=$(hostname)
$pingpong 10.77.0.$((${n#node} % '$count' + 1))' >"$LAB_DIR/clients" || fail "a client failed: $(cat "$LAB_DIR/clients")"
echo "$count pingpongs took $((SECONDS - start)) s"
done=$(grep -c '100 iters in .* usec/iter' "$LAB_DIR/clients" || :)
[ "$done" = "$count" ] || fail "$done clients have a result"
everywhere 'until [ -s /tmp/exit ]; do sleep 0.2; done; cat /tmp/exit' >"$LAB_DIR/servers" || fail "a server does not end"
done=$(grep -c ': 0$' "$LAB_DIR/servers" || :)
[ "$done" = "$count" ] || fail "a server failed: $(cat "$LAB_DIR/servers")"

"$LAB_BIN" down many
for pid in "${pids[@]}"; do ! kill -0 "$pid" 2>/dev/null || fail "process $pid still runs"; done
left=$(pgrep -af "$XDG_RUNTIME_DIR/" || :)
[ -z "$left" ] || fail "processes are left: $left"
[ -z "$(ls -A "$XDG_RUNTIME_DIR/vrnic-lab")" ] || fail "files are left: $(ls "$XDG_RUNTIME_DIR/vrnic-lab")"
