# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The compilers with which Debian 13 builds its kernels: GCC and binutils, rustc with its sources, bindgen with
# libclang, pahole. A kernel and a module in Rust need the same rustc, since its version is part of all symbol names.
# They are unpacked rather than installed: so they are the same on every machine, whose own compilers are left alone.
# COMPILERS_DIR/bin has links named as Kbuild expects; LIBCLANG_DIR has libclang. Sourced by setup.sh.

COMPILERS_PACKAGES=(gcc-14-x86-64-linux-gnu binutils-x86-64-linux-gnu rustc rust-src bindgen libclang1-19 pahole)
# Large dependencies that nothing here uses: headers and libraries for programs.
COMPILERS_UNUSED='^lib(clang-19-dev|stdc\+\+-14-dev|objc-14-dev|asan8|tsan2|lsan0|hwasan0|ubsan1)$|^linux-libc-dev$'

compilers_unpack() {
	local dir=$1 tmp=$1.tmp root=$1/root deb name bin libexec
	rm -rf "$dir" "$tmp"
	mkdir -p "$root" "$dir/bin"
	apt_fetch "$tmp" $(apt_closure "${COMPILERS_PACKAGES[@]}" | grep -vE "$COMPILERS_UNUSED")
	for deb in "$tmp"/*.deb; do
		echo "unpacking $(basename "$deb")"
		case $deb in
		# Kbuild needs only the library of rustc's sources, a sixth of them.
		*/rust-src_*) dpkg-deb --fsys-tarfile "$deb" | tar -C "$root" -x --wildcards './usr/lib/rustlib/src*' './usr/src/rustc-*/library/*' ;;
		*) dpkg-deb -x "$deb" "$root" ;;
		esac
	done
	rm -rf "$tmp"
	bin=$root/usr/bin libexec=$root/usr/libexec/gcc/x86_64-linux-gnu/14
	# gcc looks for the assembler and the linker next to cc1.
	ln -s "$bin/x86_64-linux-gnu-as" "$libexec/as"
	ln -s "$bin/x86_64-linux-gnu-ld" "$libexec/ld"
	for name in gcc-14 as ld.bfd ar nm objcopy objdump readelf strip; do
		own_loader "$root" "$bin/x86_64-linux-gnu-$name"
		ln -s "$bin/x86_64-linux-gnu-$name" "$dir/bin/"
	done
	ln -s x86_64-linux-gnu-ld.bfd "$dir/bin/x86_64-linux-gnu-ld"
	for name in rustc bindgen pahole; do
		own_loader "$root" "$bin/$name"
		ln -s "$bin/$name" "$dir/bin/"
	done
	own_loader "$root" "$libexec/cc1" "$libexec/collect2"
}

compilers_work() {
	local name
	for name in gcc-14 as ld objcopy; do "$1/bin/x86_64-linux-gnu-$name" --version || return 1; done
	for name in rustc bindgen pahole; do LIBCLANG_PATH=$LIBCLANG_DIR "$1/bin/$name" --version || return 1; done
	[ -f "$("$1/bin/rustc" --print sysroot)/lib/rustlib/src/rust/library/core/src/lib.rs" ]
}

setup_compilers() {
	COMPILERS_DIR=$CACHE/compilers/$(key_of "$SETUP_DIR/compilers.sh" "$CACHE")
	LIBCLANG_DIR=$COMPILERS_DIR/root/usr/lib/llvm-19/lib
	ready "$COMPILERS_DIR" && return
	need_space 1500 "the unpacked compilers of Debian 13"
	mkdir -p "$CACHE/compilers"
	(
		apt_state guest-only empty trixie trixie-backports
		step "compilers of Debian 13" "$LOGS/compilers.log" 149 compilers_unpack "$COMPILERS_DIR"
	)
	compilers_work "$COMPILERS_DIR" >>"$LOGS/compilers.log" 2>&1 ||
		die "the unpacked compilers do not run" "see the end of $LOGS/compilers.log"
	finish "$COMPILERS_DIR"
}
