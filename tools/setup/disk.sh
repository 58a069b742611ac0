# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A disk image like those of clouds, for `make test-disk`: Debian 13 with systemd, cloud-init and an ssh server, as
# qcow2. build/setup/disk.qcow2 becomes a link to it. Sourced by setup.sh.

DISK_PACKAGES=(
	systemd-sysv udev dbus cloud-init ifupdown openssh-server iproute2 kmod procps e2fsprogs
	rdma-core ibverbs-utils ibverbs-providers perftest
)

disk_build() {
	local dir=$1 uri=$2
	rm -rf "$dir" 2>/dev/null || as_root rm -rf "$dir"
	mkdir -p "$dir"
	apt-config dump | grep -E '^Acquire::(http|https)::Proxy' >"$dir.apt.conf" || true
	as_root mmdebstrap --variant=minbase --architectures=amd64 \
		--include="$(IFS=,; echo "${DISK_PACKAGES[*]}")" --aptopt="$dir.apt.conf" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--customize-hook='echo "LABEL=root / ext4 defaults 0 1" >"$1/etc/fstab"' \
		trixie "$dir/root" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri trixie main"
	as_root mkfs.ext4 -q -L root -d "$dir/root" "$dir/disk.raw" 2G
	as_root rm -rf "$dir/root"
	as_root chown "$(id -u):$(id -g)" "$dir/disk.raw"
	qemu-img convert -O qcow2 "$dir/disk.raw" "$dir/disk.qcow2"
	rm -f "$dir/disk.raw" "$dir.apt.conf"
}

setup_disk() {
	local dir
	[ -n "${VRNIC_NO_PACKAGES:-}" ] || install_missing "tools for disk images" qemu-utils
	dir=$CACHE/disk/$(key_of "$SETUP_DIR/disk.sh")
	if [ ! -f "$dir.complete" ]; then
		need_space 3000 "the disk image"
		mkdir -p "$CACHE/disk"
		step "disk image (Debian 13 with cloud-init)" "$LOGS/disk.log" 40 disk_build "$dir" "$(mirror)"
		date -u +%FT%TZ >"$dir.complete"
	fi
	ln -sfn "$dir/disk.qcow2" "$TREE/build/setup/disk.qcow2"
}
