#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnicd under systemd, in a VM with a fresh Debian 13 and Debian's own kernel: it starts at boot and when a client
# connects, confined as its unit says, restarts when it is killed, and leaves a recording when a device fails. An upgrade
# leaves it running. Purged, nothing is left, even if instances are enabled and a VM still has its RNIC.
. "$(dirname "$0")/fresh.bash"
tree=$TREE/build/kernel/stock/tree
modules=$(readlink -f "$tree/lab/modules")
mkdir -p "$CACHE/fresh"
work=$(mktemp -d "$CACHE/fresh/systemd.XXXXXX")
trap '[ -z "$STEP_PID" ] || end_all "$STEP_PID"; as_root rm -rf --one-file-system "$work"' EXIT

KEEP=$work/system.tar fresh trixie <<'INSIDE'
apt-get -yqq install systemd-sysv dbus udev iproute2 procps python3-minimal >/dev/null
install_ours vrnicd >/dev/null
cp /packages/vrnicd_*.deb /srv/
cp /tree/tests/packages/systemd.bash /check
# What an administrator does before the machine starts.
cat >/etc/vrnic/boot.toml <<-TOML
	control = "/run/vrnic/boot-control.sock"
	[[device]]
	name = "boot"
	socket = "/run/vrnic/boot.sock"
	mac = "52:54:00:00:00:09"
TOML
systemctl enable vrnicd@boot.service 2>/dev/null
cat >/etc/systemd/system/check.service <<-UNIT
	[Unit]
	After=multi-user.target
	SuccessAction=poweroff-force
	FailureAction=poweroff-force
	[Service]
	Type=oneshot
	ExecStart=/bin/bash /check
UNIT
INSIDE
mkdir "$work/root"
as_root tar -C "$work/root" -xf "$work/system.tar"
printf '%s\n' '#!/bin/sh' 'exec /sbin/init' >"$work/guest-init"
chmod +x "$work/guest-init"
(
	. "$TREE/tools/setup/initramfs.sh"
	SETUP_DIR=$TREE/tools/packages/lab
	initramfs_make "$tree/lab/busybox" "${modules%/lib/modules/*}" "${modules##*/}" "$work/initramfs" \
		virtio_pci 9pnet_virtio 9p overlay tun
	# Linux unpacks both archives.
	cd "$work" && echo guest-init | "$tree/lab/busybox" cpio -o -H newc >>initramfs
) >"$work/log" 2>&1 || { cat "$work/log"; echo "FAILED: no initramfs"; exit 1; }
as_root timeout 900 "$TREE/build/setup/qemu" -nodefaults -no-user-config -display none -no-reboot \
	-machine q35 -accel tcg,thread=multi -cpu max,erms=off,fsrm=off -smp 2 -m 1536M \
	-kernel "$tree/arch/x86/boot/bzImage" -initrd "$work/initramfs" \
	-append "console=ttyS0 panic=-1 no_timer_check no5lvl mitigations=off cryptomgr.notests \
		systemd.wants=check.service systemd.show_status=false systemd.mask=serial-getty@ttyS0.service" \
	-fsdev "local,id=root,path=$work/root,security_model=none,readonly=on,multidevs=remap" \
	-device virtio-9p-pci,fsdev=root,mount_tag=root -device virtio-rng-pci \
	-serial "file:$work/console" -serial "file:$work/said" </dev/null || :
as_root cat "$work/said" | tr -d '\r'
as_root grep -q '^check: done' "$work/said" || { as_root tail -n 60 "$work/console"; echo "FAILED: the VM"; exit 1; }
echo "ok: systemd runs vrnicd, and a purge leaves nothing"
