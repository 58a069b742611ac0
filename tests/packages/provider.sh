#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The provider in fresh systems with libibverbs 56 and 65: the one for its private ABI loads. It does not install beside
# another release.
. "$(dirname "$0")/fresh.bash"
for of in "trixie 34" "sid 65"; do
	read -r suite abi <<<"$of"
	{ echo "abi=$abi"; cat; } <<'INSIDE' | fresh "$suite"
dependencies ibverbs-provider-vrnic >/dev/null
state >/tmp/before
install_ours ibverbs-provider-vrnic >/dev/null
object=/usr/lib/x86_64-linux-gnu/libibverbs/libvrnic-rdmav$abi.so
# The loader finds all symbols, with their versions.
said=$(ldd -r "$object")
! grep -E 'undefined|not found|not defined' <<<"$said" || fail "$object does not load"
grep -qx 'driver vrnic' /etc/libibverbs.d/vrnic.driver
dpkg-query -W libibverbs1
dpkg --purge ibverbs-provider-vrnic >/dev/null
state >/tmp/after
diff /tmp/before /tmp/after || fail "files are left after the removal"
INSIDE
	echo "ok: the provider loads with libibverbs of $suite"
done
fresh bookworm <<'INSIDE'
! apt-get -y install /packages/ibverbs-provider-vrnic_*.deb >/tmp/said 2>&1 ||
	fail "the provider installs with $(dpkg-query -W libibverbs1)"
grep -E 'libibverbs1|libc6' /tmp/said
INSIDE
echo "ok: the provider does not install beside another libibverbs"
