#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnic-lab in a fresh Debian 13, for a user without rights: it says what is missing, and boots VMs that have the kernel,
# the driver and the programs that are installed; purged, nothing is left.
. "$(dirname "$0")/fresh.bash"
with_driver <<'INSIDE'
release=$(cat /release)
apt-get -yqq install man-db bash-completion >/dev/null
useradd --create-home --home-dir /srv/student student
dpkg --purge vrnic-lab
state >/tmp/before
install_ours vrnic-lab >/dev/null

# lab ARGUMENTS...: as that user, in a directory that is none of ours.
lab() {
	setpriv --reuid=student --regid=student --clear-groups env HOME=/srv/student sh -c 'cd && exec vrnic-lab "$@"' sh "$@"
}

lab --version
man -w vrnic-lab vrnic-lab-up >/dev/null
for file in $(dpkg -L vrnic-lab | grep '^/usr/share/man/.*gz$'); do
	said=$(man --warnings -E UTF-8 -l -Tutf8 -Z "$file" 2>&1 >/dev/null)
	[ -z "$said" ] || fail "$file: $said"
done
bash -c '. /usr/share/bash-completion/completions/vrnic-lab && complete -p vrnic-lab' >/dev/null
[ -s /usr/share/zsh/vendor-completions/_vrnic-lab ] || fail "zsh has no completions for vrnic-lab"
[ -s /usr/share/fish/vendor_completions.d/vrnic-lab.fish ] || fail "fish has no completions for vrnic-lab"

# Without a kernel that has the driver, and where it needs the source tree.
driver=$(find "/usr/lib/modules/$release" -name 'vrnic.ko*')
mv "$driver" /tmp/
! lab run 2>/tmp/said || fail "vrnic-lab runs without a kernel"
cat /tmp/said
grep -q '^vrnic-lab: no installed kernel has the driver' /tmp/said ||
	fail "the error message does not name what is missing"
mv "/tmp/${driver##*/}" "$driver"
! lab test 2>/tmp/said || fail "vrnic-lab tests without the source tree"
grep -q 'needs the source tree' /tmp/said || fail "$(cat /tmp/said)"
[ -z "$(find /srv/student/.cache -type f 2>/dev/null)" ] || fail "incomplete files are left"

lab run || fail "vrnic-lab does not run: $(tail -n 40 /srv/student/.cache/vrnic/lab/*/build/run/logs/*)"

# A lab file of the user. What was made for the first VMs serves again.
cat >/srv/student/three.toml <<-EOF
	memory = 640
	[[vm]]
	name = "node"
	count = 3
EOF
lab up three.toml
[ "$(lab exec --all -- uname -r | sort | xargs)" = "node1: $release node2: $release node3: $release" ] ||
	fail "the VMs do not run the installed kernel"
lab exec --vm node3 -- sh -c 'touch /etc/of-the-vm && id -u' | grep -qx 0 || fail "root in the VM cannot write"
[ ! -e /etc/of-the-vm ] || fail "a VM can write to this machine"
lab down
[ "$(ls -d /srv/student/.cache/vrnic/lab/*/ | wc -l)" = 1 ] ||
	fail "the image was created twice: $(ls /srv/student/.cache/vrnic/lab)"

rm -rf /srv/student/.cache /srv/student/three.toml
dpkg --purge vrnic-lab >/dev/null
state >/tmp/after
diff /tmp/before /tmp/after || fail "files are left after the removal"
INSIDE
echo "ok: vrnic-lab runs what is installed, and leaves nothing"
