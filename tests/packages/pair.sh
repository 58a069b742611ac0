#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# All packages in one fresh Debian 13, and two VMs with Debian's own kernel that have it as their root directory: vrnicd
# runs as the service's user, DKMS has built the driver, libibverbs finds the provider, and perftest runs between the VMs.
. "$(dirname "$0")/fresh.bash"
with_driver <<'INSIDE'
release=$(cat /release)
SETUP_DIR=/tree/tools/setup
. "$SETUP_DIR/initramfs.sh"
initramfs_make /usr/bin/busybox / "$release" /tmp/initramfs virtio_pci 9pnet_virtio 9p >/dev/null
install -m 755 /tree/tests/packages/guest-init /pair-init

echo 'control = "/run/vrnic/control.sock"' >/etc/vrnic/pair.toml
for n in 1 2; do
	cat >>/etc/vrnic/pair.toml <<-EOF
		[[device]]
		name = "rnic$n"
		socket = "/run/vrnic/rnic$n.sock"
		mac = "52:54:00:00:00:0$n"
		fabric = "roce"
		[[switch.port]]
		name = "vm$n"
		device = "rnic$n"
		stream = "/run/vrnic/net$n.sock"
	EOF
done
setpriv --reuid=vrnic --regid=vrnic --init-groups vrnicd --config /etc/vrnic/pair.toml 2>/tmp/log &
daemon=$!
for try in $(seq 100); do [ ! -S /run/vrnic/rnic2.sock ] || break; sleep 0.1; done

options="console=ttyS0 root=root rootfstype=9p rootflags=trans=virtio,version=9p2000.L,msize=524288,cache=loose ro \
	init=/pair-init panic=-1 no_timer_check no5lvl mitigations=off"
vms=()
for n in 1 2; do
	device="{\"driver\":\"vfio-user-pci\",\"bus\":\"pcie.0\",\"x-msg-timeout\":60000,
		\"socket\":{\"path\":\"/run/vrnic/rnic$n.sock\",\"type\":\"unix\"}}"
	qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -machine q35,memory-backend=mem0 \
		-accel tcg,thread=multi -cpu max -smp 1,maxcpus=2 -m 1G \
		-object memory-backend-memfd,id=mem0,size=1G,share=on \
		-kernel "/usr/lib/modules/$release/vmlinuz" -initrd /tmp/initramfs -append "$options pair=$n" \
		-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
		-device virtio-9p-pci,fsdev=root,mount_tag=root \
		-device virtio-rng-pci -serial "file:/tmp/console-$n" -device "$device" \
		-netdev "stream,id=net0,server=off,reconnect-ms=1000,addr.type=unix,addr.path=/run/vrnic/net$n.sock" \
		-device "virtio-net-pci,netdev=net0,mac=52:54:00:00:00:0$n,romfile=" &
	vms+=($!)
done
# A VM that ends early was said by its console.
for vm in "${vms[@]}"; do
	timeout 900 tail --pid="$vm" -f /dev/null || fail "a VM does not end: $(tail -n 50 /tmp/console-*)"
done
kill "$daemon"
wait "$daemon" || fail "vrnicd: $(cat /tmp/log)"
grep -aE 'pair:|BW|#bytes|^ *[0-9]+ +200 |PORT_ACTIVE|vrnic.ko' /tmp/console-2 | tr -d '\r'
for n in 1 2; do
	grep -aq 'pair: done' "/tmp/console-$n" || fail "VM $n: $(tail -n 60 "/tmp/console-$n"; tail -n 20 /tmp/log)"
done
INSIDE
echo "ok: two VMs with the packages run perftest"
