# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The RDMA programs and libraries of rdma-core 65 (Debian unstable or testing), for guests that otherwise run Debian 13:
# the provider is built for both releases, and both are tested. They are unpacked rather than installed, and each
# program runs with its own loader and libraries. This includes a Python for rdma-core's own tests, which are in
# lib/rdma-core-tests. build/setup/userland becomes a link to the directory with bin/, which the lab adds to the guests'
# share, and lib/. Sourced by setup.sh.

USERLAND_SUITES=(sid forky)
USERLAND_PACKAGES=(ibverbs-utils perftest python3-pyverbs rdmacm-utils)

# userland_program USERLAND FILE [NAME [VARIABLE]]: copies FILE to programs/, and writes the script bin/NAME-65 that
# runs it, with VARIABLE set.
userland_program() {
	local userland=$1 name=${3:-$(basename "$2")}
	cp -L "$2" "$userland/programs/$name"
	cat >"$userland/bin/$name-65" <<-EOF
		#!/bin/sh
		# $name of rdma-core 65's suite, by its own loader and libraries.
		d=/vrnic/userland
		${4:+$4 }exec \$d/lib/ld-linux-x86-64.so.2 --argv0 /vrnic/bin/$name-65 --library-path \$d/lib \$d/programs/$name "\$@"
	EOF
	chmod +x "$userland/bin/$name-65"
}

# userland_download DIRECTORY SUITE: downloads and unpacks Debian's packages.
userland_download() {
	local dir=$1 suite=$2 tmp=$1.tmp packages=$1.deb deb library name program python
	rm -rf "$tmp" "$packages" "$dir"
	mkdir -p "$tmp"/{bin,lib,programs,root} "$packages/partial"
	apt-get -y --no-install-recommends --download-only -o Dir::Cache::archives="$packages" \
		install "${USERLAND_PACKAGES[@]}"
	for deb in "$packages"/*.deb; do
		echo "unpacking $(basename "$deb")"
		dpkg-deb -x "$deb" "$tmp/root"
	done
	[ -f "$tmp/root/usr/lib/x86_64-linux-gnu/libibverbs.so.1.18.65.0" ] ||
		{ echo "$suite has no rdma-core 65.0 any more"; exit 1; }
	# Without links, since the lab copies plain files only; each library has the name by which others load it.
	for library in "$tmp"/root/usr/lib/x86_64-linux-gnu/*.so*; do
		name=$(objdump -p "$library" 2>/dev/null | awk '$1 == "SONAME" { print $2 }' || :)
		cp -L "$library" "$tmp/lib/${name:-$(basename "$library")}"
	done
	for program in "$tmp"/root/usr/bin/{ib_,ibv_,rping,ucmatose}*; do
		userland_program "$tmp" "$program"
	done
	python=$(cd "$tmp/root/usr/lib" && echo python3.*)
	userland_program "$tmp" "$tmp/root/usr/bin/$python" python3 PYTHONHOME='$d'
	cp -r "$tmp/root/usr/lib/$python" "$tmp/lib/"
	rm -rf "$tmp/lib/$python"/{test,idlelib,ensurepip,pydoc_data}
	find "$tmp/lib" -type l -delete
	cp -r "$tmp/root/usr/lib/python3/dist-packages/pyverbs" "$tmp/lib/$python/"
	cp -r "$tmp/root/usr/share/doc/rdma-core/tests" "$tmp/lib/rdma-core-tests"
	rm -rf "$tmp/root" "$packages"
	mv "$tmp" "$dir"
}

setup_userland() {
	local dir suite
	dir=$CACHE/userland/$(key_of "$SETUP_DIR/userland.sh")
	mkdir -p "$CACHE/userland"
	rm -f "$TREE/build/setup/userland"
	# Both suites may move on to a newer release. Then only the tests of rdma-core 65 fail.
	for suite in "${USERLAND_SUITES[@]}"; do
		ready "$dir" || (
			apt_state "userland-$suite" empty "$suite"
			step "rdma-core 65 for the guests" "$LOGS/userland.log" 120 userland_download "$dir" "$suite"
			finish "$dir"
		) || continue
		ln -sfn "$dir" "$TREE/build/setup/userland"
		return
	done
	say "going on without rdma-core 65: its tests will fail"
}
