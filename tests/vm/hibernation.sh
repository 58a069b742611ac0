# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A VM hibernates under traffic and continues: first with the image that it has just written, while all its devices are
# on, then with the power off and another QEMU in between. Each time, programs get the device-fatal event and errors for
# what they posted, a program that waits can go on with the device when it is back, and new programs work. The VM is this
# test's own, because directories of the host (9p) do not survive hibernation: its root directory is in memory.
# lab: fabric=local
# lab: timeout=300
# lab: long
# lab: needs CONFIG_HIBERNATION=y
. "$LAB_LIB"

tree=$(dirname "$LAB_LIB")/../..
kernel=$(readlink -f "${KDIR:-$tree/build/kernel/$VRNIC_KERNEL/tree}")
guest=$(readlink -f "${VRNIC_GUEST:-$tree/build/setup/guest}")
[ -x "$kernel/lab/busybox" ] || skip "the kernel came without busybox"
share=$LAB_DIR/share root=$LAB_DIR/root
"$LAB_BIN" stage "$share"
modules=("$share"/lib/modules/*)
rmdir "${modules[0]}/kernel"
ln -s "$(readlink -f "$kernel/lab/modules")/kernel" "${modules[0]}/kernel"

mkdir -p "$root"/{bin,dev,etc/libibverbs.d,lib,lib64,proc,sys,tmp}
cp "$kernel/lab/busybox" "$guest/usr/bin/ibv_asyncwatch" "$share"/bin/vrnic-{stress,verbs-check} "$root/bin/"
for program in "$root"/bin/{ibv_asyncwatch,vrnic-stress}; do
	"$guest/lib64/ld-linux-x86-64.so.2" --library-path "$guest/usr/lib/x86_64-linux-gnu" --list "$program"
done | awk '$3 ~ /^\// { print $3 }' | sort -u | xargs cp -Lt "$root/lib"
cp -L "$guest/lib64/ld-linux-x86-64.so.2" "$root/lib64/"
cp "$share"/lib/libvrnic-rdmav34.so "$root/lib/"
echo "driver /lib/libvrnic" >"$root/etc/libibverbs.d/vrnic.driver"
for module in virtio_blk virtio_net ib_uverbs rdma_ucm vrnic; do
	modprobe -C /dev/null -d "$share" -S "${modules##*/}" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
	cp "$module" "$root/lib/"
	echo "/lib/${module##*/}"
done >"$root/lib/list"

cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin LD_LIBRARY_PATH=/lib
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1
fail() {
	echo "hibernation: failed: $*"
	tail -n 20 /tmp/* 2>/dev/null
	poweroff -f
}
within() { for try in $(seq 300); do ! "$@" || return 0; sleep 0.2; done; false; }
active() { grep -sq ACTIVE /sys/class/infiniband/vrnic0/ports/1/state; }
while read -r module; do
	insmod "$module"
	case $module in
	# If there is an image on the disk, this does not return.
	*/virtio_blk.ko) cat /sys/class/block/vda/dev >/sys/power/resume 2>/dev/null ;;
	esac
done </lib/list
mkswap /dev/vda >/dev/null && swapon /dev/vda || fail "no space for an image"
# The address must not come while programs wait for the first event.
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set lo up
ip link set eth0 up
within active && within grep -sq ^fe80:.*[1-9a-f] /sys/class/infiniband/vrnic0/ports/1/gids/1 || fail "the port does not become active"
sleep 1

for mode in test_resume shutdown; do
	rm -f /tmp/*
	ibv_asyncwatch -d vrnic0 >/tmp/events 2>&1 &
	watch=$!
	(vrnic-stress --device vrnic0 --seconds 120; echo "exit $?") >/tmp/victim 2>&1 &
	victim=$!
	(RDMAV_ALLOW_DISASSOC_DESTROY=1 vrnic-verbs-check --device vrnic0 --recover import zero-length extended-interface-all; echo "exit $?") >/tmp/program 2>&1 &
	program=$!
	within grep -q 'kill the device' /tmp/program || fail "$mode: the program is not ready"
	within grep -q 'async event FD' /tmp/events || fail "$mode: ibv_asyncwatch does not start"
	grep -q exit /tmp/victim && fail "$mode: no traffic"
	echo "hibernation: $mode: begins"
	echo $mode >/sys/power/disk
	echo disk >/sys/power/state || fail "$mode: the VM does not hibernate"
	wait $victim
	grep -q 'exit 1' /tmp/victim || fail "$mode: the program did not see an error"
	wait $program
	grep -q 'the device is back' /tmp/program && grep -q 'exit 0' /tmp/program || fail "$mode: the program could not continue"
	within grep -q DEVICE_FATAL /tmp/events || fail "$mode: no device-fatal event"
	kill $watch
	wait $watch
	within active || fail "$mode: the port does not become active again"
	vrnic-stress --device vrnic0 --seconds 1 || fail "$mode: the device does not work again"
	echo "hibernation: $mode: ok"
done
poweroff -f
END
chmod +x "$root/init"
(cd "$root" && find . | LC_ALL=C sort | "$kernel/lab/busybox" cpio -o -H newc) >"$LAB_DIR/initramfs" 2>/dev/null
truncate -s 1G "$LAB_DIR/swap"

cat >"$LAB_DIR/vrnicd.toml" <<end
control = "$LAB_DIR/control.sock"
[[device]]
name = "rnic0"
socket = "$LAB_DIR/rnic0.sock"
mac = "52:54:00:76:72:0b"
end
"$(dirname "$VRNICCTL")/vrnicd" --config "$LAB_DIR/vrnicd.toml" &
daemon=$!
trap 'kill $daemon 2>/dev/null || :' EXIT
within 20 test -S "$LAB_DIR/rnic0.sock" || fail "vrnicd does not start"

# power: runs the VM until it turns itself off.
power() {
	timeout $((120 * LAB_SLOWNESS)) "${QEMU:-$tree/build/setup/qemu}" -nodefaults -no-user-config -display none \
		-machine q35,memory-backend=mem0 -accel tcg,thread=multi -cpu max,erms=off,fsrm=off -smp 2 -m 512M \
		-object memory-backend-memfd,id=mem0,size=512M,share=on -no-reboot \
		-kernel "$kernel/arch/x86/boot/bzImage" -initrd "$LAB_DIR/initramfs" \
		-append "console=ttyS0 panic=-1 no_timer_check no5lvl mitigations=off hibernate=nocompress" \
		-drive "id=swap,if=none,format=raw,file=$LAB_DIR/swap" -device virtio-blk-pci,drive=swap \
		-netdev user,id=net,restrict=on,ipv6=off -device virtio-net-pci,netdev=net,mac=52:54:00:76:72:0b \
		-device '{"driver": "vfio-user-pci", "bus": "pcie.0", "socket": {"type": "unix", "path": "'"$LAB_DIR/rnic0.sock"'"}, "x-msg-timeout": 60000}' \
		-chardev "file,id=console,path=$LAB_DIR/console,append=on" -serial chardev:console ||
		fail "QEMU: $?: $(tail -n 40 "$LAB_DIR/console")"
}
said() { found -ax "hibernation: $1" < <(tr -d '\r' <"$LAB_DIR/console"); }
power
said 'test_resume: ok' && said 'shutdown: begins' || fail "the VM says: $(tail -n 60 "$LAB_DIR/console")"
! said 'shutdown: ok' || fail "the VM did not turn its power off"
power
said 'shutdown: ok' || fail "the VM says: $(tail -n 60 "$LAB_DIR/console")"
! found "should not be sleeping" <"$LAB_DIR/console" || fail "the driver adds devices to one that sleeps"
kill "$daemon"
wait "$daemon" || fail "vrnicd ends with an error"
