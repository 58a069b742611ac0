#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Measures RoCE over UDP between two network namespaces, which stand for two hosts, and iperf3 on the same pair of
# network devices for comparison. Needs no privilege where users may create namespaces.
# Usage: bash tools/native/over-udp.sh [ARGUMENTS OF vrnic-native over-udp...]
set -eu
if [ -z "${VRNIC_INSIDE:-}" ]; then
	VRNIC_INSIDE=1 exec unshare --user --map-root-user --net -- bash "$0" "$@"
fi
# Room for the packets of 4096 bytes that the guests request.
mtu=9000
programs=$(cd "$(dirname "$0")/../target/release" && pwd)
directory=$(mktemp -d)
unshare --net sleep infinity &
other=$!
trap 'kill $other; rm -r "$directory"' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
there() { nsenter --target $other --net -- "$@"; }

ip link set lo up
ip link add host1 mtu $mtu type veth peer name host2 mtu $mtu netns $other
ip address add 192.0.2.1/24 dev host1
ip link set host1 up
there ip address add 192.0.2.2/24 dev host2
there ip link set host2 up
cat >"$directory/vrnicd" <<end
#!/bin/sh
exec nsenter --target $other --net -- "$programs/vrnicd" "\$@"
end
chmod +x "$directory/vrnicd"

echo "RoCE, MTU $mtu:"
"$programs/vrnic-native" over-udp --hosts 192.0.2.1 192.0.2.2 --other "$directory/vrnicd" "$@"
if ! command -v iperf3 >/dev/null; then
	echo "iperf3 is not installed: nothing to compare with"
	exit
fi
# Datagrams as long as those of a RoCE packet. If this iperf3 supports it, several are sent as one message.
length=4112
many=$(iperf3 --help 2>&1 | grep -o -- --gsro || :)
there iperf3 -s -1 >/dev/null &
server=$!
until there ss -Hltn sport = :5201 | grep -q .; do sleep 0.1; done
echo "iperf3, UDP${many:+ with GSO}, datagrams of $length bytes:"
iperf3 -c 192.0.2.2 -u -b 0 -t 5 -l $length $many | grep -E 'sender|receiver'
wait $server
