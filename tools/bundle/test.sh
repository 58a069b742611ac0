#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Checks that the bundle works without anything else: in a root directory that contains only busybox and the bundle,
# without a network, as an unprivileged user.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -f build/bundle.tar.gz ] || { echo "build/bundle.tar.gz is missing: run \`make bundle\`"; exit 1; }
fail() { echo "FAIL: $*"; exit 1; }
(. tools/setup/lib.sh; need_space 1500 "the unpacked bundle" "${TMPDIR:-/tmp}")

root=$(mktemp -d "${TMPDIR:-/tmp}/vrnic-bundle.XXXXXX")
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,dev,proc,tmp,home/tree}
cp build/kernel/stock/tree/lab/busybox "$root/bin/"
for applet in sh cat env cut dirname readlink ls mount mkdir rm; do ln -s busybox "$root/bin/$applet"; done
begin=$SECONDS
tar -xzf build/bundle.tar.gz -C "$root/home"
unpacked=$((SECONDS - begin))
# A user without any files outside this directory.
user=()
if [ "$(id -u)" = 0 ]; then
	chown -R 65534:65534 "$root"
	user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
fi

# there COMMAND...: runs COMMAND in that root directory.
there() {
	"${user[@]}" env -i PATH=/bin:/usr/bin:/sbin:/usr/sbin unshare --map-root-user --mount --net --pid --fork --kill-child \
		sh -c 'mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" && cd "$1/home" && exec chroot "$@"' \
		sh "$root" /bin/sh -c 'cd /home && export PATH=/bin HOME=/home && exec "$@"' sh "$@"
}

begin=$SECONDS
there vrnic/vrnic-lab run || fail "run"
ran=$((SECONDS - begin))
[ -s "$root/home/vrnic/build/run/report.json" ] || fail "run writes no report"

code=0
there vrnic/vrnic-lab exec --tree tree -- sh -c 'uname -r >kernel && exit 7' || code=$?
[ "$code" = 7 ] || fail "exec ends with $code, not with the command's exit code"
[ -s "$root/home/tree/kernel" ] || fail "the directory does not have what the command wrote"

there vrnic/vrnic-lab pair --tree tree --listen 18515 -- \
	'ibv_rc_pingpong -g $GID >server && echo served' --- 'ibv_rc_pingpong -g $GID $SERVER >client && echo asked' >"$root/pair" ||
	fail "pair: $(cat "$root/pair")"
grep -qx 'b| served' "$root/pair" && grep -qx asked "$root/pair" || fail "pair does not print the programs' output"
grep -q 'iters' "$root/home/tree/client" || fail "the client wrote no result"
there vrnic/vrnic-lab pair -- 'sleep 0.1; exit 3' --- true >/dev/null && fail "pair succeeds though the server fails"

for command in test bench; do
	there vrnic/vrnic-lab $command >"$root/refused" 2>&1 && fail "$command works in a bundle"
	grep -q 'needs the source tree' "$root/refused" || fail "$command: $(cat "$root/refused")"
done
there env KDIR=/ vrnic/vrnic-lab run >"$root/refused" 2>&1 && fail "a bundle accepts KDIR"
echo "unpacked in $unpacked s; run took $ran s"
