#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnic-dkms in a fresh Debian 13 with kernels of its backports: the module is built when the package is installed, and
# for another kernel when that is; kernels that cannot have it are skipped; sources of other versions are passed over;
# what is missing is said; purged, nothing is left.
. "$(dirname "$0")/fresh.bash"
fresh trixie trixie-backports <<'INSIDE'
headers=$(apt-cache pkgnames linux-headers-7.3 | grep -E '^linux-headers-7\.3[.0-9]*\+deb13-amd64$' | sort -V | tail -n 1)
first=${headers#linux-headers-}
second=${first%amd64}rt-amd64
old=$(apt-cache pkgnames linux-headers-7.2 | grep -E '^linux-headers-7\.2[.0-9]*\+deb13-amd64$' | sort -V | tail -n 1)
old=${old#linux-headers-}

# built RELEASE: the module for it is there and complete.
built() {
	local module
	module=$(find "/lib/modules/$1/updates/dkms" -name 'vrnic.ko*')
	[ "$(modinfo -F vermagic "$module" | cut -d ' ' -f 1)" = "$1" ] || fail "no module for $1"
	modinfo -F alias "$module" | grep -q '^virtio:d0000002Av' || fail "the module for $1 is incomplete"
	echo "ok: $module"
}

dependencies vrnic-dkms >/dev/null
apt-get -yqq install dkms "linux-headers-$first" "linux-headers-$old" >/dev/null
state >/tmp/before

echo "--- without the source of the kernel"
! install_ours vrnic-dkms >/tmp/said 2>&1 || fail "the package is configured without the kernel's source"
cat /tmp/said
grep -q "^vrnic: the source of the kernel $first is missing; install linux-source-7.3" /tmp/said ||
	fail "the error message does not name what is missing"

echo "--- with sources of other versions"
version=${first%%+*}
for name in linux-source-7.3=998 "linux-$version=999"; do
	mkdir "/usr/src/${name%=*}"
	printf 'VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = %s\n' "${name#*=}" >"/usr/src/${name%=*}/Makefile"
done
dkms autoinstall -k "$first" >/tmp/said 2>&1 || true
cat /tmp/said
grep -q "source of 7.3.998 (/usr/src/linux-source-7.3), 7.3.999 (/usr/src/linux-$version); install the source of $version" \
	/tmp/said || fail "the error message does not name the sources that were found"
rm -r "/usr/src/linux-$version"

echo "--- with the right one too, in an archive"
apt-get -yqq install "linux-source-7.3"
built "$first"
[ ! -e "/lib/modules/$old/updates/dkms" ] || fail "there is a module for $old"

echo "--- a kernel is installed later, when the right source is in linux-$version"
mkdir "/usr/src/linux-$version"
tar -C "/usr/src/linux-$version" --strip-components=1 -xf /usr/src/linux-source-7.3.tar.xz
rm /usr/src/linux-source-7.3.tar.xz
apt-get -yqq install "linux-headers-$second"
built "$second"
apt-get -yqq purge "linux-headers-$second" linux-source-7.3 >/dev/null
apt-get -yqq autoremove --purge >/dev/null
rm -r /usr/src/linux-source-7.3 "/usr/src/linux-$version"

echo "--- purged"
dpkg --purge vrnic-dkms
# A kernel that went before the module did has left its directory, which is nobody's then.
find /usr/lib/modules -type d -empty -delete
state >/tmp/after
# Keys for signing are dkms's own.
diff /tmp/before <(grep -v '^/var/lib/dkms/mok\.' /tmp/after) || fail "files are left after the removal"
INSIDE
echo "ok: vrnic-dkms builds modules and leaves nothing"
