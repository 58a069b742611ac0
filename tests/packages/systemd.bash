# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# What the VM of systemd.sh does when it has booted. Its second serial port shows what this says.
exec >/dev/ttyS1 2>&1
set -euo pipefail
export LC_ALL=C.UTF-8 HOME=/root
fail() {
	trap - ERR
	echo "FAILED: $*"
	systemctl --no-pager --lines=0 status 'vrnicd@*' || :
	journalctl --no-pager --lines=40 --output=cat --unit='vrnicd@*' || :
	exit 1
}
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR

# within SECONDS COMMAND...: repeats COMMAND until it succeeds.
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$end" ] || fail "not in time: $*"
		sleep 0.2
	done
}
is() { [ "$(systemctl is-active "$1")" = "$2" ]; }
is_owned() { [ "$(stat -c '%a %U %G' "$1")" = "$2" ] || fail "$(stat -c '%n: %a %U %G' "$1"), not $2"; }
main_pid() { systemctl show --property=MainPID --value "$1"; }

# client SOCKET: does what QEMU does first, then what a driver does, and stays connected until it is killed.
client() {
	: >/tmp/client.log
	python3 - "$1" >/tmp/client.log 2>&1 <<-'PYTHON' &
		import signal, socket, struct, sys
		client = socket.socket(socket.AF_UNIX)
		client.connect(sys.argv[1])
		def call(command, body):
		    client.sendall(struct.pack("<HHIII", 7, command, 16 + len(body), 0, 0) + body)
		    reply = client.recv(4096)
		    assert struct.unpack("<HHIII", reply[:16]) == (7, command, len(reply), 1, 0), reply
		    return reply[16:]
		def read(offset, size):
		    return call(9, struct.pack("<QII", offset, 0, size))[16:]
		def write(offset, data, region=0):
		    call(10, struct.pack("<QII", offset, region, len(data)) + data)
		call(1, struct.pack("<HH", 0, 1) + b"{}\0")
		write(0x14, bytes([1 | 2]))                  # ACKNOWLEDGE, DRIVER
		for half in range(2):
		    write(0x00, struct.pack("<I", half))
		    offered = read(0x04, 4)
		    write(0x08, struct.pack("<I", half))
		    write(0x0c, offered)
		write(0x14, bytes([1 | 2 | 8]))              # FEATURES_OK
		write(0x14, bytes([1 | 2 | 8 | 4]))          # DRIVER_OK
		assert read(0x14, 1) == bytes([15])
		write(0, bytes(4), 4)                        # a doorbell
		print("answered", flush=True)
		signal.pause()
	PYTHON
	client=$!
	within 60 grep -q answered /tmp/client.log
}

install() { dpkg --force-unsafe-io -i /srv/vrnicd_*.deb >/tmp/said 2>&1 || fail "$(cat /tmp/said)"; }
purge() { dpkg --force-unsafe-io --purge vrnicd >/tmp/said 2>&1 || fail "$(cat /tmp/said)"; }
state() {
	find / -xdev \( -path /tmp -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/log \
		-o -path /var/cache \) -prune -o -print | grep -vE '^/etc/.*-$' | sort
	sort /etc/passwd /etc/group
}

echo "--- booted"
is_owned /run/vrnic "750 vrnic vrnic"
within 60 vrnicctl --socket /run/vrnic/boot-control.sock devices
systemctl stop vrnicd@boot.service

echo "--- a client starts it"
cat >/etc/vrnic/rnic0.toml <<-TOML
	control = "/run/vrnic/control.sock"
	test_panic_on_sigusr1 = ["rnic0"]
	[[device]]
	name = "rnic0"
	socket = "/run/vrnic/rnic0.sock"
	mac = "52:54:00:00:00:01"
TOML
systemctl enable --now vrnicd@rnic0.socket
is_owned /run/vrnic/rnic0.sock "660 vrnic vrnic"
is vrnicd@rnic0.service inactive || fail "the service runs before a client connects"
client /run/vrnic/rnic0.sock
is vrnicd@rnic0.service active || fail "the service does not run after a client connected"
vrnicctl devices | tee /tmp/devices
grep -q '^rnic0 ' /tmp/devices || fail "no rnic0"

echo "--- it is confined"
pid=$(main_pid vrnicd@rnic0.service)
[ "$(ps -o user= -p "$pid")" = vrnic ] || fail "it runs as $(ps -o user= -p "$pid")"
tr -d '[:blank:]' <"/proc/$pid/status" >/tmp/status
for line in CapEff:0000000000000000 CapBnd:0000000000000000 NoNewPrivs:1 Seccomp:2; do
	grep -qx "$line" /tmp/status || fail "not $line: $(grep "^${line%:*}:" /tmp/status)"
done
! nsenter --mount --target "$pid" touch /usr/x 2>/dev/null || fail "/usr is writable for it"

echo "--- killed, it comes back"
kill -KILL "$pid"
back() { local now; now=$(main_pid vrnicd@rnic0.service) && [ "$now" != 0 ] && [ "$now" != "$pid" ]; }
within 60 back
within 60 vrnicctl devices
pid=$(main_pid vrnicd@rnic0.service)
kill -0 "$client" || fail "the client lost its socket"
kill "$client"
client /run/vrnic/rnic0.sock

echo "--- a device that fails leaves a recording"
directory=/var/lib/vrnic/rnic0
is_owned "$directory" "700 vrnic vrnic"
kill -USR1 "$pid"
within 60 test -s "$directory/rnic0-crash.vrnic"
is_owned "$directory/rnic0-crash.vrnic" "600 vrnic vrnic"
vrnic-replay "$directory/rnic0-crash.vrnic" | tee /tmp/replayed
grep -q '^the recording ends: internal error of the device' /tmp/replayed || fail "the recording has another end"
[ "$(main_pid vrnicd@rnic0.service)" = "$pid" ] || fail "the service ended with the device"
vrnicctl devices >/dev/null

echo "--- all kinds of ports"
ip tuntap add tap0 mode tap user vrnic
cat >/etc/vrnic/net.toml <<-TOML
	control = "/run/vrnic/net-control.sock"
	[[device]]
	name = "n0"
	socket = "/run/vrnic/n0.sock"
	mac = "52:54:00:00:00:02"
	fabric = "roce"
	[[device]]
	name = "n1"
	socket = "/run/vrnic/n1.sock"
	mac = "52:54:00:00:00:03"
	fabric = "roce"
	[[switch.port]]
	name = "vm"
	device = "n0"
	stream = "/run/vrnic/net0.sock"
	[[switch.port]]
	name = "uplink"
	tap = "tap0"
	[[switch.port]]
	name = "host2"
	link = { local = "127.0.0.1:4789", peer = "127.0.0.2:4789", vni = 1 }
	[[switch.port]]
	name = "nic"
	udp = { local = "127.0.0.1", device = "n1", peers = ["127.0.0.0/8"] }
TOML
systemctl start vrnicd@net.service
within 60 vrnicctl --socket /run/vrnic/net-control.sock switch
vrnicctl --socket /run/vrnic/net-control.sock switch | tee /tmp/ports
for port in 'vm .* stream ' 'uplink .* tap tap0 ' 'host2 .* link 127.0.0.2:4789 ' 'nic .* udp 127.0.0.1 '; do
	grep -q "^$port" /tmp/ports || fail "no port $port"
done
[[ "$(ss -Hlun)" == *127.0.0.1:4791* ]] || fail "no socket for RoCE: $(ss -Hlun)"
systemctl stop vrnicd@net.service
is vrnicd@net.service inactive || fail "vrnicd@net did not end cleanly"

echo "--- an upgrade"
install
[ "$(main_pid vrnicd@rnic0.service)" = "$pid" ] || fail "the upgrade restarted vrnicd"
is vrnicd@rnic0.socket active || fail "the upgrade closed the socket"

failed=$(systemctl list-units --failed --no-legend --plain 'vrnicd@*')
[ -z "$failed" ] || fail "$failed"
! journalctl --no-pager --grep 'type=1326|status=31/SYS' --output=cat || fail "a system call was refused"

echo "--- purged, while a VM has its RNIC and instances are enabled"
systemctl enable vrnicd@rnic0.service 2>/dev/null
purge
cat /tmp/said
grep -q 'the user vrnic stays' /tmp/said || fail "the message does not say that the user stays"
kill -0 "$client" || fail "the client lost its socket"
pgrep --euid vrnic --full holder >/dev/null || fail "the helper process ended"
[ -z "$(pgrep --full 'vrnicd --config' || :)" ] || fail "vrnicd still runs"
left=$(find /etc/systemd /run/vrnic /var/lib/vrnic /usr -name '*vrnic*' 2>/dev/null || :)
[ -z "$left" ] || fail "left: $left"
kill "$client"
none() { ! pgrep --euid vrnic; }
within 60 none
userdel vrnic
rm /etc/vrnic/{boot,rnic0,net}.toml
rmdir /etc/vrnic
state >/tmp/before

echo "--- installed again, and purged without a VM"
install
cp /usr/share/doc/vrnicd/examples/vrnicd.toml /etc/vrnic/rnic0.toml
systemctl enable --now vrnicd@rnic0.service 2>/dev/null
within 60 vrnicctl devices
rm /etc/vrnic/rnic0.toml
purge
state >/tmp/after
diff /tmp/before /tmp/after || fail "files are left after the removal"
echo "check: done"
