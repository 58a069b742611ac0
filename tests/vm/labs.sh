#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Labs of `vrnic-lab up`: three VMs on networks of both fabrics, where each pair exchanges messages; files and shared
# directories; a second lab at the same time that is not affected; changes of a running lab; and complete cleanup.
# lab: crowd
# lab: timeout=900
. "$LAB_LIB"

export XDG_RUNTIME_DIR=$LAB_DIR/run
mkdir -m 700 "$XDG_RUNTIME_DIR" "$LAB_DIR/shared"
on_lab() { "$LAB_BIN" exec --lab "$@" </dev/null; }
end() {
	for name in three other; do "$LAB_BIN" down "$name" >/dev/null || :; done
}
trap end EXIT

# A mistake is reported with its line, and nothing starts.
printf '[[vm]]\nname = "a"\nmemory = "much"\n' >"$LAB_DIR/three.toml"
if said=$("$LAB_BIN" up "$LAB_DIR/three.toml" 2>&1); then fail "an invalid lab file was accepted"; fi
found -F 'three.toml:3: `memory = "much"`' <<<"$said" || fail "the error message does not name the mistake: $said"
[ -z "$(ls -A "$XDG_RUNTIME_DIR/vrnic-lab" 2>/dev/null)" ] || fail "files are left: $(ls "$XDG_RUNTIME_DIR/vrnic-lab")"

echo 'from the host' >"$LAB_DIR/file"
udp=$((20000 + $$ % 20000))
cat >"$LAB_DIR/three.toml" <<end
memory = 768

[[network]]
name = "mem"

[[network]]
name = "wire"
fabric = "roce"

[[network.link]]
local = "127.0.0.1:$udp"
peer = "127.0.0.1:$((udp + 1))"

[[vm]]
name = "x"

[[vm]]
name = "y"
netdev = [{ network = "wire", vlan = 5 }]
rnic = [{ network = "mem" }, { network = "wire" }]

[[vm]]
name = "z"
memory = 640

[[vm.share]]
host = "shared"
guest = "/mnt/shared"

[[vm.file]]
host = "file"
guest = "/mnt/new/"
end
# Another program uses the port of the link: this is reported, and nothing is left.
exec 4< <(exec python3 -c 'import socket, sys, time
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other.bind(("127.0.0.1", int(sys.argv[1])))
print("bound", flush=True)
time.sleep(1000)' "$udp")
other=$!
read -r <&4
if said=$("$LAB_BIN" up "$LAB_DIR/three.toml" 2>&1); then fail "a lab started although its port is in use"; fi
found -F "cannot use the address 127.0.0.1:$udp (if another program uses it, give \`local\` another port)" <<<"$said" ||
	fail "the error message does not name the port: $said"
[ -z "$(ls -A "$XDG_RUNTIME_DIR/vrnic-lab")" ] || fail "files are left: $(ls "$XDG_RUNTIME_DIR/vrnic-lab")"
kill "$other"
exec 4<&-

# A running lab continues when its program is replaced or, as here, deleted. VMs boot again below, for which the lab
# starts its own processes.
cp "$LAB_BIN" "$LAB_DIR/program"
"$LAB_DIR/program" up "$LAB_DIR/three.toml" | tee "$LAB_DIR/up"
rm "$LAB_DIR/program"

# Browser addresses, one for each network, which give read-only access.
[ "$(grep -c '^in a browser, network .*: http://127.0.0.1:[0-9]*/?token=[0-9a-f]*$' "$LAB_DIR/up")" = 2 ] || fail "no address is printed"
# ask ADDRESS METHOD PATH: prints the answer of the server at an address.
ask() {
	local host=${1#http://}
	host=${host%%/*}
	exec 3<>"/dev/tcp/${host%:*}/${host#*:}"
	printf '%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: 0\r\n\r\n' "$2" "$3" "$host" "${1##*=}" >&3
	cat <&3
	exec 3<&-
}
for web in $(grep -o 'http://.*' "$LAB_DIR/up"); do
	ask "$web" GET / | found -F 'HTTP/1.1 200' >/dev/null || fail "$web shows nothing"
	ask "$web" POST /api/action | found -F 'HTTP/1.1 403' >/dev/null || fail "$web allows actions"
done

# index VM DEVICE: prints the index of the device's IPv4 GID.
index() {
	on_lab "${lab:-three}" --vm "$1" -- sh -c "cd /sys/class/infiniband/$2/ports/1; for n in \$(seq 0 15); do
		case \$(cat gids/\$n):\$(cat gid_attrs/types/\$n) in 0000:0000:0000:0000:0000:ffff:*v2) echo \$n; exit; esac; done"
}
port=18600
# pingpong SERVER CLIENT DEVICE ADDRESS
pingpong() {
	local job
	port=$((port + 1))
	on_lab three --vm "$1" --timeout 60 -- ibv_rc_pingpong -d "$3" -g "$(index "$1" "$3")" -p $port -n 100 >/dev/null &
	job=$!
	within 40 on_lab three --vm "$1" -- sh -c "ss -Hltn sport = :$port | grep -q ." || fail "no server listens in VM $1"
	on_lab three --vm "$2" --timeout 60 -- ibv_rc_pingpong -d "$3" -g "$(index "$2" "$3")" -p $port -n 100 "$4" |
		found usec/iter >/dev/null || fail "no pingpong from $2 to $1 on $3"
	wait $job || fail "the pingpong in VM $1 failed"
}
for net in 0 1; do
	pingpong x y vrnic$net 10.77.$net.1
	pingpong y z vrnic$net 10.77.$net.2
	pingpong z x vrnic$net 10.77.$net.3
done

# All VMs at the same time, one of them with a different result.
[ "$(on_lab three --all -- hostname | sort | xargs)" = "x: x y: y z: z" ] || fail "the command did not run in all VMs"
code=0
said=$(on_lab three --vm x,z --json -- sh -c '[ $(hostname) = x ] || exit 3') || code=$?
[ $code = 3 ] || fail "exit code $code, not 3"
[ "$(grep -c '"exit": [03]' <<<"$said")" = 2 ] || fail "no exit codes in $said"
# If its reader closes, the command ends here, as with SIGPIPE.
for vm in x x,y; do
	codes=$(set +o pipefail; on_lab three --vm $vm -- yes | head -n 1 >/dev/null; echo "${PIPESTATUS[0]}")
	[ "$codes" = 141 ] || fail "exit code $codes of a command whose output was closed"
done
if on_lab three --vm w -- true 2>"$LAB_DIR/said"; then fail "a command in VM w, which does not exist, was accepted"; fi
found 'no VM `w`; there are x, y, z' <"$LAB_DIR/said" >/dev/null || fail "$(cat "$LAB_DIR/said")"

# Memory, files and shared directories.
[ "$(on_lab three --vm z -- awk '/MemTotal/ { print ($2 < 655360) }' /proc/meminfo)" = 1 ] ||
	fail "z does not have the configured memory"
[ "$(on_lab three --vm z -- cat /mnt/new/file)" = "from the host" ] || fail "the file was not copied"
on_lab three --vm z -- sh -c 'echo from z >/mnt/shared/z'
[ "$(cat "$LAB_DIR/shared/z")" = "from z" ] || fail "the host does not see what z wrote"
echo host >"$LAB_DIR/shared/host"
[ "$(on_lab three --vm z -- cat /mnt/shared/host)" = host ] || fail "z does not see what the host wrote"
mkdir "$LAB_DIR/tree"
head -c 3000000 /dev/urandom >"$LAB_DIR/tree/data"
"$LAB_BIN" copy --lab three "$LAB_DIR/tree" x:/mnt/copy
"$LAB_BIN" copy --lab three x:/mnt/copy "$LAB_DIR/back"
cmp "$LAB_DIR/tree/data" "$LAB_DIR/back/data" || fail "the copy differs"
if "$LAB_BIN" copy --lab three x:/no/such "$LAB_DIR/nothing" 2>/dev/null; then
	fail "the copy of a missing file succeeded"
fi
[ ! -e "$LAB_DIR/nothing" ] || fail "the copy of a missing file exists"

# Another lab has a VM with the same name, which a link connects to the network "wire".
cat >"$LAB_DIR/other.toml" <<end
memory = 640
first_number = 9
[[network]]
name = "joined"
fabric = "roce"
subnet = 1
[[network.link]]
local = "127.0.0.1:$((udp + 1))"
peer = "127.0.0.1:$udp"
[[vm]]
name = "x"
end
"$LAB_BIN" up "$LAB_DIR/other.toml" --json | found '"state": "up"' || fail "the other lab is not up"
on_lab other --vm x -- touch /tmp/other
! on_lab three --vm x -- test -e /tmp/other || fail "the two labs share VM x"
on_lab other --vm x --timeout 60 -- ibv_rc_pingpong -d vrnic0 -g "$(lab=other index x vrnic0)" -p 18500 -n 100 >/dev/null &
job=$!
within 40 on_lab other --vm x -- sh -c "ss -Hltn sport = :18500 | grep -q ." ||
	fail "no server listens in the other lab"
on_lab three --vm z --timeout 60 -- ibv_rc_pingpong -d vrnic1 -g "$(index z vrnic1)" -p 18500 -n 100 10.77.1.9 |
	found usec/iter >/dev/null || fail "no pingpong from lab to lab"
wait $job || fail "the pingpong in the other lab failed"
if "$LAB_BIN" down 2>"$LAB_DIR/said"; then fail "an ambiguous lab was accepted"; fi
found 'other, three' <"$LAB_DIR/said" >/dev/null || fail "$(cat "$LAB_DIR/said")"
"$LAB_BIN" down other
pingpong x y vrnic0 10.77.0.1

# The same file again changes nothing. A different memory size reboots one VM, and removing a VM does not change the
# others' addresses.
boot_id() { on_lab three --vm "$1" -- cat /proc/sys/kernel/random/boot_id; }
x=$(boot_id x)
z=$(boot_id z)
"$LAB_BIN" up "$LAB_DIR/three.toml" >/dev/null
[ "$(boot_id x) $(boot_id z)" = "$x $z" ] || fail "the unchanged lab file boots VMs"
sed -i 's/^memory = 640/memory = 700/' "$LAB_DIR/three.toml"
"$LAB_BIN" up "$LAB_DIR/three.toml" >/dev/null
[ "$(boot_id x)" = "$x" ] || fail "a change of z's memory booted x"
[ "$(boot_id z)" != "$z" ] || fail "z still has its old memory"
z=$(boot_id z)
# A QEMU that has died is started again.
kill -9 "$("$LAB_BIN" ctl --lab three pid qemu-z)"
within 10 sh -c '"$1" status three | grep -q "^z *ended"' sh "$LAB_BIN" || fail "z is not dead"
"$LAB_BIN" up "$LAB_DIR/three.toml" >/dev/null
[ "$(boot_id z)" != "$z" ] || fail "z was not booted again"
# Without the VM y.
sed -i '/^name = "y"/,/^name = "z"/{/^name = "z"/!d}' "$LAB_DIR/three.toml"
"$LAB_BIN" up "$LAB_DIR/three.toml" >/dev/null
! on_lab three --vm y -- true 2>/dev/null || fail "y is still there"
pingpong z x vrnic1 10.77.1.3
"$LAB_BIN" logs --lab three z | found 'Linux version' >/dev/null || fail "no console of z"

# When the supervisor is killed, everything ends with it, and the next command cleans up.
pid=$("$LAB_BIN" status three --json | grep -m 1 -o '"pid": [0-9]*' | cut -d' ' -f2)
qemu=$("$LAB_BIN" ctl --lab three pid qemu-x)
kill -9 "$pid"
within 10 sh -c "! kill -0 $qemu 2>/dev/null" || fail "QEMU still runs"
[ "$("$LAB_BIN" status)" = "no lab is up" ] || fail "a killed lab is shown as up"
[ -z "$(ls -A "$XDG_RUNTIME_DIR/vrnic-lab")" ] || fail "files are left: $(ls "$XDG_RUNTIME_DIR/vrnic-lab")"

# Ended while it boots, and ended in the normal way.
"$LAB_BIN" up "$LAB_DIR/other.toml" >/dev/null 2>&1 &
job=$!
within 20 sh -c '"$1" status other 2>/dev/null | grep -q booting' sh "$LAB_BIN" || fail "the other lab does not boot"
"$LAB_BIN" down other
if wait $job; then fail "up reports success for a lab that was ended"; fi
[ -z "$(ls -A "$XDG_RUNTIME_DIR/vrnic-lab")" ] || fail "files are left: $(ls "$XDG_RUNTIME_DIR/vrnic-lab")"
