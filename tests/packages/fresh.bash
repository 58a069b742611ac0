# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Fresh Debian systems to install the packages in. Sourced by the tests beside it.
set -euo pipefail
TREE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PACKAGES=${PACKAGES:-$TREE/build/packages}
. "$TREE/tools/setup/lib.sh"

# minimal FILE SUITE...: a minimal Debian of the first suite, with the others at hand, from this machine's own mirror.
minimal() {
	local file=$1 suite options sources=()
	shift
	apt-config dump | grep -E '^Acquire::(http|https)::Proxy' >"$file.apt.conf" || true
	for suite in "$@"; do
		options=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
		case $suite in sid | forky) options+=' check-valid-until=no' ;; esac
		sources+=("deb [$options] $(mirror) $suite main")
	done
	as_root mmdebstrap --variant=apt --architectures=amd64 --aptopt="$file.apt.conf" --skip=cleanup/apt/lists \
		--aptopt='APT::Install-Recommends "false"' --aptopt='APT::Sandbox::User "root"' \
		"$1" "$file.tar" "${sources[@]}"
	rm -f "$file.apt.conf"
}

# fresh SUITE... <SCRIPT: bash runs SCRIPT in a minimal Debian, with the packages in /packages and this tree in /tree. Then
# it is gone.
fresh() {
	local name base
	name=$CACHE/fresh/$(IFS=+ && echo "$*")
	base=$name-$(key_of "$TREE/tests/packages/fresh.bash" "$*")
	mkdir -p "$CACHE/fresh"
	if [ ! -f "$base.complete" ]; then
		# Those that older versions of this made.
		rm -f "$name"-*
		need_space 500 "a minimal Debian"
		step "a minimal Debian ($*)" "$base.log" 12 minimal "$base" "$@"
		date -u +%FT%TZ >"$base.complete"
	fi
	inside "$base.tar"
}

# with_driver <SCRIPT: the same in a Debian 13 with a kernel of its backports, whose release is in /release, and QEMU, in
# which all packages are installed. It is kept for the next test.
with_driver() {
	local base
	base=$CACHE/fresh/driver-$(cd "$PACKAGES" && cat -- *.deb | sha256sum | cut -c 1-16)
	if [ ! -f "$base.complete" ]; then
		rm -f "$CACHE"/fresh/driver-*
		KEEP=$base.tar fresh trixie trixie-backports <<-'INSTALL'
			headers=$(apt-cache pkgnames linux-headers-7.3 | grep -E '^linux-headers-7\.3[.0-9]*\+deb13-amd64$' | sort -V | tail -n 1)
			release=${headers#linux-headers-}
			echo "$release" >/release
			apt-get -yqq install busybox-static iproute2 kmod perftest ibverbs-utils "linux-headers-$release" \
				"linux-binary-$release" "linux-modules-$release" linux-source-7.3 >/dev/null
			depmod "$release"
			# As Documentation/install.rst says: with QEMU come newer libraries, which what is there then fits.
			install_ours vrnicd vrnic-dkms ibverbs-provider-vrnic >/tmp/said || fail "$(cat /tmp/said)"
			apt-get -yqq -t trixie-backports install qemu-system-x86 >/dev/null
			install_ours vrnic-lab >/dev/null
		INSTALL
		date -u +%FT%TZ >"$base.complete"
	fi
	{
		# As systemd does when a machine starts.
		echo 'systemd-tmpfiles --create vrnicd.conf'
		cat
	} | inside "$base.tar"
}

# inside TAR <SCRIPT: runs SCRIPT in that system, and puts what became of it in the file $KEEP, if that is set. What apt
# downloads is kept for the next one.
inside() {
	local dir status=0 memory=
	mkdir -p "$CACHE/fresh/archives/partial"
	# Where there is room, the system is in memory: compilers make many small files.
	[ "$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)" -lt 12000000 ] || memory=yes
	# Downloads, and a system that is kept, are on disk in any case.
	need_space "$([ -n "$memory" ] && echo 2500 || echo 8000)" "a system of tests of packages"
	dir=$(mktemp -d "$CACHE/fresh/root.XXXXXX")
	{
		cat "$TREE/tests/packages/inside.bash"
		cat
	} >"$dir.test"
	# The mounts go with the namespace.
	as_root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
		unshare --mount --pid --fork --kill-child bash -euc '
			mount --make-rprivate /
			[ -z "$7" ] || mount -t tmpfs -o size=8G root "$1"
			tar -C "$1" -xf "$2"
			mount -t proc proc "$1/proc"
			mount -t tmpfs run "$1/run"
			mount --rbind /dev "$1/dev"
			mkdir -p "$1/packages" "$1/tree"
			mount --bind "$3" "$1/packages"
			mount --bind "$5" "$1/tree"
			mount --bind "$4" "$1/var/cache/apt/archives"
			cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
			cp "$1.test" "$1/test"
			chroot "$1" bash -euo pipefail /test
			[ -z "$6" ] || tar -C "$1" --one-file-system --exclude="./packages/*" --exclude="./tree/*" \
				--exclude="./var/cache/apt/archives/*" -cf "$6" .' \
		bash "$dir" "$1" "$PACKAGES" "$CACHE/fresh/archives" "$TREE" "${KEEP:-}" "$memory" || status=$?
	as_root rm -rf --one-file-system "$dir" "$dir.test"
	return $status
}
