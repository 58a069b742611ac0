#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnic-dkms in a fresh Debian 13 with kernels of its backports: the module is built when the package is installed, and
# when the kernel is upgraded; kernels that cannot have it are skipped; sources of other versions are passed over; what
# is missing is said; purged, nothing is left.
. "$(dirname "$0")/fresh.bash"
fresh trixie trixie-backports <<'INSIDE'
headers=$(apt-cache pkgnames linux-headers-7.3 | grep -E '^linux-headers-7\.3[.0-9]*\+deb13-amd64$' | sort -V | tail -n 1)
first=${headers#linux-headers-}
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
apt-get -yqq install dkms "linux-headers-$old" >/dev/null
# As Documentation/install.rst has it.
apt-get -yqq install linux-headers-amd64/trixie-backports >/dev/null
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
# As Documentation/install.rst has it.
apt-get -yqq install linux-source/trixie-backports
built "$first"
[ ! -e "/lib/modules/$old/updates/dkms" ] || fail "there is a module for $old"

echo "--- the kernel is upgraded, together with its source"
# What Debian would publish: headers and source of the next series, and the meta packages that need them.
next=7.4.1${first#"$version"}
mkdir -p /tmp/repository /tmp/{headers,source,headers-meta,source-meta}
archive() { ls -t "/var/cache/apt/archives/$1"_*.deb | head -n 1; }
dpkg-deb -R "$(archive "linux-headers-$first")" /tmp/headers
mv "/tmp/headers/usr/src/linux-headers-$first" "/tmp/headers/usr/src/linux-headers-$next"
mv "/tmp/headers/usr/lib/modules/$first" "/tmp/headers/usr/lib/modules/$next"
ln -sfn "/usr/src/linux-headers-$next" "/tmp/headers/usr/lib/modules/$next/build"
grep -rlIF "$first" /tmp/headers | xargs sed -i "s/${first//./\\.}/$next/g"
sed -i "s/ ${version//./\\.} / ${next%%+*} /" "/tmp/headers/usr/src/linux-headers-$next/.config"
sed -i -e 's/^Version:.*/Version: 7.4.1-1/' -e "s/ linux-base-$next ([^)]*),//" /tmp/headers/DEBIAN/control
rm -r /tmp/headers/DEBIAN/md5sums /tmp/headers/usr/share
dpkg-deb -R "$(archive linux-source-7.3)" /tmp/source
cd /tmp/source
# The later of two files in an archive wins.
xz -dc usr/src/linux-source-7.3.tar.xz >archive
tar -xf archive linux-source-7.3/Makefile
sed -i -e 's/^PATCHLEVEL = .*/PATCHLEVEL = 4/' -e 's/^SUBLEVEL = .*/SUBLEVEL = 1/' linux-source-7.3/Makefile
tar -rf archive linux-source-7.3/Makefile
gzip -1 <archive >usr/src/linux-source-7.4.tar.xz
rm -r archive linux-source-7.3 usr/src/*7.3* usr/share DEBIAN/md5sums
sed -i -e 's/^Package:.*/Package: linux-source-7.4/' -e 's/^Version:.*/Version: 7.4.1-1/' DEBIAN/control
# meta NAME PACKAGE: makes the meta package linux-NAME, which needs PACKAGE.
meta() {
	mkdir "/tmp/${1%-amd64}-meta/DEBIAN"
	printf '%s\n' "Package: linux-$1" 'Version: 7.4.1-1' 'Architecture: amd64' 'Maintainer: t <t@invalid>' \
		"Depends: $2" 'Description: meta package' >"/tmp/${1%-amd64}-meta/DEBIAN/control"
}
meta headers-amd64 "linux-headers-$next"
meta source linux-source-7.4
cd /tmp/repository
for package in headers source headers-meta source-meta; do
	dpkg-deb -Znone -b "/tmp/$package" . >/dev/null
	rm -r "/tmp/$package"
done
for file in *.deb; do
	dpkg-deb -f "$file"
	printf '%s\n' "Filename: ./$file" "Size: $(stat -c %s "$file")" "SHA256: $(sha256sum "$file" | cut -d ' ' -f 1)" ''
done >Packages
cd /
echo 'deb [trusted=yes] file:/tmp/repository ./' >/etc/apt/sources.list.d/next.list
apt-get -qq -o Dir::Etc::sourcelist=/etc/apt/sources.list.d/next.list -o Dir::Etc::sourceparts=- \
	-o APT::Get::List-Cleanup=0 update
apt-get -yqq --with-new-pkgs upgrade
built "$next"
built "$first"
# The package of a kernel calls this when it is removed.
linux-run-hooks image prerm "$first" "/boot/vmlinuz-$first" -- remove
apt-get -yqq purge "linux-headers-$first" >/dev/null
[ -z "$(find /lib/modules -path "*/$first/*" -name 'vrnic.ko*')" ] || fail "the module of the removed kernel stays"
apt-get -yqq purge linux-source linux-source-7.3 linux-source-7.4 >/dev/null
apt-get -yqq autoremove --purge >/dev/null
rm /etc/apt/sources.list.d/next.list
rm -r /usr/src/linux-source-7.3

echo "--- purged"
dpkg --purge vrnic-dkms
# A kernel that went before the module did has left its directory, which is nobody's then.
find /usr/lib/modules -type d -empty -delete
state >/tmp/after
# The headers are of another version now. Keys for signing are dkms's own.
others() { grep -vE '/linux-|/usr/lib/modules/|^/var/lib/dkms/mok\.|[-/]7\.[34]\.' "$1"; }
diff <(others /tmp/before) <(others /tmp/after) || fail "files are left after the removal"
left=$(find / -xdev -path /tmp -prune -o -path /packages -prune -o -path /tree -prune -o -name '*vrnic*' -print)
[ -z "$left" ] || fail "left: $left"
INSIDE
echo "ok: vrnic-dkms builds modules and leaves nothing"
