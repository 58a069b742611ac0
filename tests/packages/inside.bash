# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# What tests do in a fresh Debian. It is gone afterwards: dpkg need not wait for the disk.
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/fast
# Two tests wait for each other: they share what apt downloads, and that has room for one.
exec 8>/var/cache/apt/archives/lock-of-tests
flock 8

fail() { echo "FAILED: $*"; exit 1; }

# install_ours PACKAGE...: ours, and whatever they need from the mirror.
install_ours() {
	local name files=()
	for name in "$@"; do files+=(/packages/"$name"_*.deb); done
	apt-get -yqq install "${files[@]}"
}

# dependencies PACKAGE...: installs what ours need, and not ours.
dependencies() {
	local name
	for name in "$@"; do apt-get -yqq satisfy "$(dpkg-deb -f /packages/"$name"_*.deb Depends)"; done
}

# state: the files of the system and its users, but for what apt and dpkg note.
state() {
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /packages -o -path /tree -o -path /tree -o -path /var/lib/dpkg \
		-o -path /var/lib/apt -o -path /var/log -o -path /var/cache \) -prune -o -print | grep -vE '^/etc/.*-$' | sort
	sort /etc/passwd /etc/group
}
