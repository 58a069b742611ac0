#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The example domain for libvirt has an RNIC that carries data, and refuses to be saved. The test has a libvirtd of its
# own, and boots the lab's kernel and root directory, since there is no disk image here.
# lab: fabric=local
# lab: timeout=300
. "$LAB_LIB"

tree=$(dirname "$LAB_LIB")/../..
kernel=$(readlink -f "${KDIR:-$tree/build/kernel/$VRNIC_KERNEL/tree}")
share=$LAB_DIR/share
"$LAB_BIN" stage "$share"
# The guest's init runs this.
cat >"$share/bin/vrnic-agent" <<'END'
#!/bin/bash
exec >/dev/console 2>&1
for try in $(seq 300); do ! grep -q ACTIVE /sys/class/infiniband/vrnic0/ports/1/state || break; sleep 0.2; done
ibv_devinfo -d vrnic0 | grep state:
ib_write_bw -d vrnic0 -F -s 65536 -n 200 >/dev/null &
for try in $(seq 60); do ! ib_write_bw -d vrnic0 -F -s 65536 -n 200 127.0.0.1 || break; sleep 1; done
wait $! && echo "libvirt: done"
echo o >/proc/sysrq-trigger
# It starts no more programs, because Linux would panic if the first one ended.
while :; do read -rt 1 _ <>/dev/console || :; done
END

cat >"$LAB_DIR/vrnicd.toml" <<end
control = "$LAB_DIR/control.sock"
[[device]]
name = "rnic0"
socket = "$LAB_DIR/rnic0.sock"
mac = "52:54:00:76:72:0a"
end
"$(dirname "$VRNICCTL")/vrnicd" --config "$LAB_DIR/vrnicd.toml" &
daemon=$!
trap 'kill $daemon 2>/dev/null || :' EXIT
within 20 test -S "$LAB_DIR/rnic0.sock" || fail "vrnicd does not start"

# directory TAG PATH: gives the VM read access.
directory() { echo "<filesystem type=\"mount\" accessmode=\"squash\"><source dir=\"$2\"/><target dir=\"$1\"/><readonly/></filesystem>"; }
directories=$(directory root "$(readlink -f "${VRNIC_GUEST:-$tree/build/setup/guest}")")$(directory share "$share")
initramfs=
if [ -e "$kernel/lab/modules" ]; then
	directories+=$(directory modules "$(readlink -f "$kernel/lab/modules")/kernel")
	initramfs="<initrd>$kernel/lab/initramfs</initrd>"
fi
arguments="console=ttyS0 root=root rootfstype=9p rootflags=trans=virtio,version=9p2000.L,msize=524288,cache=loose ro"
arguments+=" init=/sbin/vrnic-init panic=-1 no_timer_check no5lvl mitigations=off lab.name=rdma lab.device=vrnic"
arguments+=" lab.nic=52:54:00:76:72:0a,10.0.0.1,fd00::1"
# Removes what is not available here: KVM, a disk, and libvirt's network.
sed -e 's/type="kvm"/type="qemu"/; s/<cpu mode="host-passthrough"/<cpu mode="maximum"/; s|2048</memory>|768</memory>|' \
	-e "s|<type arch.*|&<kernel>$kernel/arch/x86/boot/bzImage</kernel>$initramfs<cmdline>$arguments</cmdline>|" \
	-e 's|<interface type="network">|<interface type="user">|; /<source network/d' \
	-e "s|<console type=\"pty\"/>|<serial type=\"file\"><source path=\"$LAB_DIR/console\"/></serial>|" \
	-e "s|<devices>|<on_reboot>destroy</on_reboot>&<emulator>$(readlink -f "${QEMU:-$tree/build/setup/qemu}")</emulator>|; s|/run/vrnic/|$LAB_DIR/|" \
	-e "/<disk/,/<\/disk>/c $directories" "$tree/tools/vrnicd/libvirt.xml" >"$LAB_DIR/domain.xml"

export XDG_RUNTIME_DIR=$LAB_DIR/run XDG_CONFIG_HOME=$LAB_DIR/config XDG_CACHE_HOME=$LAB_DIR/cache XDG_DATA_HOME=$LAB_DIR/data
mkdir -m 700 "$XDG_RUNTIME_DIR"
mkdir -p "$XDG_CONFIG_HOME/libvirt"
printf '%s\n' 'security_driver = "none"' 'stdio_handler = "file"' >"$XDG_CONFIG_HOME/libvirt/qemu.conf"
# The package that creates the QEMU user also starts services, so the test adds the user itself.
(cat /etc/passwd && echo 'libvirt-qemu:x:64055:64055::/:/bin/false') >"$LAB_DIR/passwd"
(cat /etc/group && echo 'libvirt-qemu:x:64055:') >"$LAB_DIR/group"
cat >"$LAB_DIR/session" <<'END'
cd "$LAB_DIR"
uri=qemu:///session
if [ "$(id -u)" = 0 ]; then
	# Root has no session. This gives the session its own directories, and the scratch directory at its old place.
	uri=qemu:///system
	for dir in /run /etc/libvirt /var/lib /var/log /var/cache; do mount -t tmpfs tmpfs $dir; done
	mkdir -p "$LAB_DIR" && mount --bind . "$LAB_DIR"
	printf '%s\n' 'user = "root"' 'group = "root"' 'dynamic_ownership = 0' 'remember_owner = 0' 'cgroup_controllers = []' \
		'namespaces = []' >>config/libvirt/qemu.conf
	mount --bind config/libvirt /etc/libvirt
	for file in passwd group; do mount --bind $file /etc/$file; done
fi
virsh() { command virsh -c $uri "$@"; }
/usr/sbin/libvirtd >libvirtd.log 2>&1 &
daemon=$!
# QEMU refuses to save or migrate the VM, which would lose the state of its RNIC.
refused() {
	! virsh save rdma saved >said 2>&1 && grep -q "Migration is disabled when using feature 'peer mode'" said && return
	echo "the VM was saved, or refused for another reason: $(cat said)"
	false
}
for try in $(seq 100); do ! virsh list >/dev/null 2>&1 || break; sleep 0.2; done
virsh create --validate domain.xml && refused && while [ "$(virsh domstate rdma 2>/dev/null)" = running ]; do sleep 0.5; done
result=$?
[ $result = 0 ] || cat libvirtd.log cache/libvirt/qemu/log/rdma.log /var/log/libvirt/qemu/rdma.log
virsh destroy rdma >/dev/null 2>&1
kill $daemon
wait $daemon
exit $result
END
around=()
[ "$(id -u)" != 0 ] || around=(unshare --mount)
"${around[@]}" bash "$LAB_DIR/session" || fail "libvirt does not run the domain"
tr -d '\r' <"$LAB_DIR/console" | grep -aE 'PORT_ACTIVE|#bytes|^ *65536|libvirt:' || :
found -ax 'libvirt: done' < <(tr -d '\r' <"$LAB_DIR/console") || fail "the VM says: $(tail -n 40 "$LAB_DIR/console")"
kill "$daemon"
wait "$daemon" || fail "vrnicd ends with an error"
