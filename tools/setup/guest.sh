#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The guests' root directories: unmodified minimal Debian 13 with RDMA programs, served read-only over 9p.
# build/setup/guest becomes a link to the usual one. build/setup/apps becomes a link to one that also has what `make
# test-apps` runs: MPI, UCX, libfabric, and ssh, with which MPI starts its processes. Sourced by setup.sh.

GUEST_SUITE=trixie
GUEST_PACKAGES=(
	rdma-core ibverbs-utils ibverbs-providers perftest rdmacm-utils python3-pyverbs infiniband-diags opensm
	iproute2 iputils-ping ethtool kmod pciutils procps strace jq less e2fsprogs fio nfs-kernel-server open-iscsi
	srptools
)
APPS_PACKAGES=(openmpi-bin python3-mpi4py ucx-utils libfabric-bin openssh-server openssh-client)

# guest_build DIRECTORY MIRROR PACKAGE...: builds a root directory with these packages.
guest_build() {
	local dir=$1 uri=$2
	shift 2
	rm -rf "$dir" 2>/dev/null || as_root rm -rf "$dir"
	# Pass on the proxy that this machine's apt uses.
	apt-config dump | grep -E '^Acquire::(http|https)::Proxy' >"$dir.apt.conf" || true
	as_root mmdebstrap --variant=minbase --architectures=amd64 \
		--include="$(IFS=,; echo "$*")" \
		--aptopt="$dir.apt.conf" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/rdma-core/*' \
		--customize-hook="mkdir -p \"\$1/vrnic\" \"\$1/lib/modules\" && install -m 755 '$SETUP_DIR/guest-init' \"\$1/sbin/vrnic-init\"" \
		--customize-hook='echo vrnic >"$1/etc/hostname"' \
		"$GUEST_SUITE" "$dir" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $GUEST_SUITE main"
	# Make the image readable for everyone, since QEMU need not run as root. Nothing in it is secret.
	as_root chmod -R a+rX "$dir"
	rm -f "$dir.apt.conf"
}

# guest_image NAME MIB WHAT PACKAGE...: builds the image, which needs MIB of space, and links it as build/setup/NAME.
guest_image() {
	local name=$1 space=$2 what=$3 root
	shift 3
	root=$CACHE/guest/$(key_of "$SETUP_DIR/guest.sh" "$SETUP_DIR/guest-init" "$@")
	if [ ! -f "$root.complete" ]; then
		need_space "$space" "$what"
		mkdir -p "$CACHE/guest"
		step "$what (Debian 13)" "$LOGS/$name.log" 16 guest_build "$root" "$(mirror)" "$@"
		date -u +%FT%TZ >"$root.complete"
	fi
	ln -sfn "$root" "$TREE/build/setup/$name"
}

setup_guest() { guest_image guest 600 "guest image" "${GUEST_PACKAGES[@]}"; }
setup_apps() { guest_image apps 1300 "guest image with MPI, UCX and libfabric" "${GUEST_PACKAGES[@]}" "${APPS_PACKAGES[@]}"; }
