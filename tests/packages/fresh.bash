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

# fresh SUITE... <SCRIPT: bash runs SCRIPT in a minimal Debian, with the packages in /packages and this tree in /tree. Then it is gone. What apt
# downloads is kept for the next one.
fresh() {
	local base dir status=0
	base=$CACHE/fresh/$1-$(key_of "$TREE/tests/packages/fresh.bash" "$*")
	mkdir -p "$CACHE/fresh/archives/partial"
	if [ ! -f "$base.complete" ]; then
		step "a minimal Debian ($*)" "$base.log" 12 minimal "$base" "$@"
		date -u +%FT%TZ >"$base.complete"
	fi
	dir=$(mktemp -d "$CACHE/fresh/root.XXXXXX")
	{
		cat "$TREE/tests/packages/inside.bash"
		cat
	} >"$dir.test"
	# The mounts go with the namespace.
	as_root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
		unshare --mount --pid --fork --kill-child bash -euc '
			mount --make-rprivate /
			tar -C "$1" -xf "$2"
			mount -t proc proc "$1/proc"
			mount -t tmpfs run "$1/run"
			mount --rbind /dev "$1/dev"
			mkdir "$1/packages" "$1/tree"
			mount --bind "$3" "$1/packages"
			mount --bind "$5" "$1/tree"
			mount --bind "$4" "$1/var/cache/apt/archives"
			cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
			cp "$1.test" "$1/test"
			exec chroot "$1" bash -euo pipefail /test' \
		bash "$dir" "$base.tar" "$PACKAGES" "$CACHE/fresh/archives" "$TREE" || status=$?
	as_root rm -rf --one-file-system "$dir" "$dir.test"
	return $status
}
