#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The example domain for libvirt, with the libvirt of Debian 13: its VM has an RNIC that carries data. The VM boots
# Debian's own kernel and has the fresh system as its root directory, since there is no disk image here.
. "$(dirname "$0")/fresh.bash"
with_driver <<'INSIDE'
release=$(cat /release)
apt-get -yqq install libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients >/dev/null
SETUP_DIR=/tree/tools/setup
. "$SETUP_DIR/initramfs.sh"
initramfs_make /usr/bin/busybox / "$release" /tmp/initramfs virtio_pci 9pnet_virtio 9p >/dev/null
cp "/usr/lib/modules/$release/vmlinuz" /tmp/vmlinuz
install -m 755 /tree/tests/packages/guest-init /pair-init

adduser --quiet libvirt-qemu vrnic
printf '%s\n' '[[device]]' 'name = "rnic0"' 'socket = "/run/vrnic/rnic0.sock"' 'mac = "52:54:00:76:72:0a"' >/etc/vrnic/rnic0.toml
# As the service does it: members of the group may connect.
(umask 007 && exec setpriv --reuid=vrnic --regid=vrnic --init-groups vrnicd --config /etc/vrnic/rnic0.toml 2>/tmp/log) &
daemon=$!

# libvirt asks /sys which processors there are.
mount -t sysfs sys /sys
# What the chroot has not: control groups, systemd, security modules, and a disk, a network and KVM for the VM.
cat >/etc/libvirt/qemu.conf <<-EOF
	security_driver = "none"
	cgroup_controllers = []
	namespaces = []
	stdio_handler = "file"
EOF
arguments="console=ttyS0 root=root rootfstype=9p rootflags=trans=virtio,version=9p2000.L,msize=524288,cache=loose ro"
arguments+=" init=/pair-init panic=-1 no_timer_check no5lvl mitigations=off pair=0"
sed -e 's/type="kvm"/type="qemu"/; s/<cpu mode="host-passthrough"/<cpu mode="maximum"/' \
	-e "s|<type arch.*|&<kernel>/tmp/vmlinuz</kernel><initrd>/tmp/initramfs</initrd><cmdline>$arguments</cmdline>|" \
	-e 's|<interface type="network">|<interface type="user">|; /<source network/d' \
	-e 's|<console type="pty"/>|<serial type="file"><source path="/tmp/console"/></serial>|' \
	-e '/<disk/,/<\/disk>/c <filesystem type="mount" accessmode="squash"><source dir="/"/><target dir="root"/><readonly/></filesystem>' \
	/usr/share/doc/vrnicd/examples/libvirt.xml >/tmp/domain.xml
libvirtd --daemon
for try in $(seq 100); do ! virsh -c qemu:///system list >/dev/null 2>&1 || break; sleep 0.2; done
virsh -c qemu:///system create --validate /tmp/domain.xml || fail "$(tail -n 20 /var/log/libvirt/qemu/rdma.log)"
for try in $(seq 600); do
	[ "$(virsh -c qemu:///system domstate rdma 2>/dev/null)" = running ] || break
	sleep 1
done
tr -d '\r' </tmp/console >/tmp/said
grep -aE 'pair:|PORT_ACTIVE|#bytes|^ *65536' /tmp/said
grep -aqx 'pair: done' /tmp/said || fail "the VM: $(tail -n 60 /tmp/said)"
kill "$daemon" "$(cat /run/libvirtd.pid)"
wait "$daemon" || fail "vrnicd: $(cat /tmp/log)"
INSIDE
echo "ok: the example domain for libvirt has an RNIC"
