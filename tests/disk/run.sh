#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `make test-disk`: a VM that boots a disk image, in which cloud-init does what it is told, beside one with a root
# directory to which packages are added: they exchange messages by their RNICs, one logs in to both by ssh, and the image
# stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
lab=$PWD/tools/target/release/vrnic-lab
out=build/disk
fail() {
	echo "FAILED: $*"
	exit 1
}

rm -rf $out
mkdir -p -m 700 $out/run
export XDG_RUNTIME_DIR=$PWD/$out/run
trap '"$lab" down disk >/dev/null 2>&1 || :' EXIT
cat >$out/user-data <<'end'
#cloud-config
write_files:
  - path: /etc/from-user-data
    content: cloud-init was here
end
cat >$out/disk.toml <<'end'
[[vm]]
name = "disk"
image = "../setup/disk.qcow2"
user_data = "user-data"
ssh = true

[[vm]]
name = "directory"
packages = ["tree"]
ssh = true

[[vm.share]]
host = "."
guest = "/mnt/out"

[[vm]]
name = "closed"
memory = 512
end
sum=$(sha256sum <build/setup/disk.qcow2)

# A package that Debian does not have is named, and no VM starts.
sed 's/"tree"/"no-such-package"/' $out/disk.toml >$out/wrong.toml
! "$lab" up $out/wrong.toml >$out/said 2>&1 || fail "a lab came up with a package that does not exist"
grep -q 'Unable to locate package no-such-package' $out/said || fail "$(cat $out/said)"
grep -q 'no image with no-such-package openssh-server' $out/said || fail "$(cat $out/said)"
[ -z "$("$lab" status 2>/dev/null | grep wrong)" ] || fail "the lab is up"

"$lab" up $out/disk.toml
on() { "$lab" exec --lab disk --vm "$@" </dev/null; }
ssh() { "$lab" ssh --lab disk "$@" </dev/null; }

# What the VM has is its own system, with the lab's kernel and driver.
on disk -- cloud-init status --wait --long || fail "cloud-init: $(on disk -- cat /var/log/cloud-init.log | grep -iE "warn|error|fail" | tail -n 20)"
[ "$(on disk -- cat /proc/1/comm)" = systemd ] || fail "the system on the disk does not run"
[ "$(on disk -- hostname)" = disk ] || fail "the hostname is $(on disk -- hostname)"
[ "$(on disk -- findmnt -no FSTYPE /)" = ext4 ] || fail "its root directory is not the disk's"
[ "$(on disk -- cat /etc/from-user-data)" = "cloud-init was here" ] || fail "cloud-init did nothing"
on disk -- ip -br address | tee $out/addresses
grep -q ' 10.77.0.1/24' $out/addresses || fail "the VM does not have its address"

[ "$(ssh disk hostname)" = disk ] || fail "no ssh to the disk's system"
[ "$(ssh debian@disk id -un)" = debian ] || fail "no ssh to the user of the disk's system"
[ "$(ssh directory 'hostname; echo one >/mnt/out/two')" = directory ] || fail "no ssh to the root directory"
[ "$(cat $out/two)" = one ] || fail "the shared directory is empty"
on directory -- tree -L 1 /mnt || fail "the package is not in the image"
! on closed -- which tree || fail "a VM without packages has them, too"
code=0
ssh disk 'exit 7' || code=$?
[ $code = 7 ] || fail "ssh ended with $code, not with the command's exit code"
! ssh closed true 2>$out/said || fail "ssh to a VM without"
grep -q 'ssh = true' $out/said || fail "$(cat $out/said)"

index() {
	on "$1" -- sh -c 'cd /sys/class/infiniband/vrnic0/ports/1; for n in $(seq 0 15); do
		case $(cat gids/$n):$(cat gid_attrs/types/$n) in 0000:0000:0000:0000:0000:ffff:*v2) echo $n; exit; esac; done'
}
on disk -- ibv_rc_pingpong -d vrnic0 -g "$(index disk)" -n 100 >/dev/null &
for try in $(seq 40); do
	! on disk -- sh -c 'ss -Hltn sport = :18515 | grep -q .' || break
	sleep 0.5
done
on directory -- ibv_rc_pingpong -d vrnic0 -g "$(index directory)" -n 100 10.77.0.1 | tee $out/pingpong
grep -q usec/iter $out/pingpong || fail "no pingpong"
wait $! || fail "the pingpong in the disk's system failed"

"$lab" down disk
[ "$(sha256sum <build/setup/disk.qcow2)" = "$sum" ] || fail "the image has changed"
echo "ok: a disk image with cloud-init, ssh, and packages"
