#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `make check`: formatting, lints, documentation and file rules. Runs all checks and names those that failed at the end.
# usage: check.sh build/kernel/NAME, of the kernel that the module is checked with
set -uo pipefail
cd "$(dirname "$0")/../.."
export PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH
# Keep cargo out of the jobserver of the make that called this.
unset MAKEFLAGS MFLAGS
kernel=$1 kdir=$(readlink "$1/tree")
logs=build/check
mkdir -p "$logs"
failed=()

# check NAME COMMAND...: runs COMMAND with its output in a log, the end of which is shown if COMMAND fails.
check() {
	local name=$1 start=$SECONDS
	shift
	printf '%-44s' "$name"
	if "$@" >"$logs/$name.log" 2>&1; then
		printf 'ok (%d s)\n' $((SECONDS - start))
	else
		printf 'FAILED (%d s)\n' $((SECONDS - start))
		failed+=("$name")
		tail -n 40 "$logs/$name.log" | sed 's/^/    | /'
	fi
}

tracked() { git ls-files -z -- "$@" | xargs -0 -r ls -d 2>/dev/null; }

spdx() {
	local file bad=0
	while read -r file; do
		case $file in
		*.gitignore | *.lock | *.json | *.driver | *.svg | *.png | *.pcap | *.pcapng | *.vrnic | *LICENSES/* | *.proptest-regressions | tools/fuzz/corpus/* | tools/series/commits/* | *.patch | tools/series/cover | tools/packages/debian/*) continue ;;
		esac
		head -n 3 "$file" | grep -q 'SPDX-License-Identifier:' || { echo "$file: no SPDX line"; bad=1; }
	done < <(tracked .)
	return $bad
}

whitespace() {
	! tracked . | grep -vE '\.(svg|png|pcap|pcapng|vrnic|lock)$|^tools/fuzz/corpus/|^tools/series/commits/|\.patch$' | xargs grep -nE '[[:blank:]]+$' -- &&
		! tracked '*.rs' '*.rst' '*.toml' | xargs grep -nP '\t' --
}

# long PATTERN FILE...: prints the lines that match, other than those with links, which cannot be broken. Fails if there
# are any.
long() {
	local pattern=$1
	shift
	[ $# -eq 0 ] || ! LC_ALL=C.UTF-8 grep -nHP "$pattern" "$@" | grep -vE 'https?:'
}

# Covers comments and C, since rustfmt takes care of Rust code: 100 columns for the kernel's side, 120 elsewhere.
line_length() {
	local bad=0 comment='^(?=\s*//)'
	# Paths here contain no blanks.
	long "$comment.{101,}" $(tracked 'rust/*.rs' 'drivers/*.rs') || bad=1
	long '^.{101,}' $(tracked 'rust/*.c' 'rust/*.h' 'include/*.h') || bad=1
	long "$comment.{121,}" $(tracked 'tools/*.rs' 'tests/*.rs') || bad=1
	return $bad
}

# Forbids paths of a developer's machine, and notes about unfinished work.
machine_paths() {
	! tracked . | grep -v 'setup/check.sh$' | xargs grep -nP '(?<![\w.$}/])(?<!\w")/(root|work|home/\w+)/[\w.]' --
}
leftovers() {
	! tracked '*.rs' '*.c' '*.h' '*.sh' '*.bash' '*.rst' '*.md' | grep -v 'setup/check.sh$' |
		xargs grep -nwE 'TODO|FIXME|XXX|HACK|todo!|unimplemented!' --
}

# In VM tests, which run under pipefail, a pipe may fail if `grep -q` finds its text and exits before the writer is
# done. Commands for a guest's own shell (`sh -c`) run without pipefail.
early_pipe_ends() { ! tracked 'tests/vm/*' tools/lab/vmtest.sh | xargs grep -nE '\| *grep -[a-zA-Z]*q' -- | grep -v 'sh -c'; }

# Allows `unsafe` only where it is expected: in the abstractions and in named modules of the daemon and the provider.
# The driver has one use: its registration.
unsafe_code() {
	! tracked 'drivers/*.rs' 'tools/engine/*.rs' 'tools/switch/*.rs' 'tools/lab/*.rs' 'rust/wire/*.rs' |
		xargs grep -nE '\bunsafe\b *(\{|fn|impl|trait|extern)' -- | grep -v 'Registration::new('
}

kernel_rustfmt() {
	# Always use the kernel tree's own style file, whatever the directory of the source.
	local config
	config=$(readlink -f "$kdir/source" 2>/dev/null || echo "$kdir")/.rustfmt.toml
	[ -f "$config" ] || config=$kdir/.rustfmt.toml
	local files=('rust/*.rs' 'drivers/*.rs' 'tests/refused/*.rs')
	tracked "${files[@]}" | xargs rustfmt --check --edition 2021 --config-path "$config" --config skip_children=true 2>/dev/null ||
		tracked "${files[@]}" | xargs rustfmt --check --edition 2021 --config-path "$config"
}

# Runs clippy on a separate copy of the module. Warnings are errors.
kernel_clippy() {
	bash tools/setup/module-sources.sh build/clippy
	# Clippy sees only what is compiled, so compile everything again.
	find build/clippy -name '*.o' -delete
	"$kernel/make" M="$PWD/build/clippy" CLIPPY=1 CONFIG_INFINIBAND_VRNIC_KUNIT_TEST=y modules || return 1
	# With -q: its output would go to this log, and grep refuses to read the file that it writes to.
	! grep -qE '^(warning|error)' "$logs/kernel-clippy.log"
}

# Checks what the abstractions do not let a driver do, with the crates that clippy has read.
kernel_refused() { python3 tests/refused/check.py build/clippy "$logs/refused"; }

# A kernel tree can document only its own crates.
kernel_docs() {
	VRNIC_OBJTREE=$PWD/build/clippy bash tools/setup/rustdoc.sh build/clippy build/doc \
		rust/{wire/vrnic_wire,bindings/lib,virtio/lib,rdma/lib,rdma/example/lib} drivers/infiniband/hw/vrnic/main
}

userspace_docs() { (cd tools && RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items); }

# Pedantic lints, without those that are a matter of taste, and without the one on `as` casts that truncate: code
# reduces ring indices, PSNs and registers to their width on purpose, and hosts have 64 bits.
userspace_clippy() {
	local allowed=(
		module_name_repetitions must_use_candidate missing_errors_doc missing_panics_doc too_many_lines
		struct_excessive_bools similar_names struct_field_names doc_markdown enum_glob_use wildcard_imports
		needless_pass_by_value unnecessary_wraps duration_suboptimal_units cast_possible_truncation
	)
	# Includes the fuzzer's own program: linting links nothing.
	(cd tools && cargo clippy --workspace --all-targets --features vrnic-fuzz/libfuzzer --release -- \
		-D warnings -W clippy::pedantic \
		$(printf -- '-A clippy::%s ' "${allowed[@]}"))
}
userspace_rustfmt() { (cd tools && cargo fmt --all --check); }
documents() { local f bad=0; for f in $(tracked 'Documentation/*.rst'); do python3 -m docutils --strict "$f" /dev/null || bad=1; done; return $bad; }
shell_syntax() { local f bad=0; for f in $(tracked '*.sh' '*.bash' .ci/run); do bash -n "$f" || bad=1; done; return $bad; }

check spdx spdx
check whitespace whitespace
check line-length line_length
check machine-paths machine_paths
check leftovers leftovers
check early-pipe-ends early_pipe_ends
check unsafe-code unsafe_code
check shell-syntax shell_syntax
check documents documents
check userspace-rustfmt userspace_rustfmt
check kernel-rustfmt kernel_rustfmt
check userspace-clippy userspace_clippy
check userspace-docs userspace_docs
check kernel-clippy kernel_clippy
check kernel-refused kernel_refused
check kernel-docs kernel_docs

if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]} (logs in $logs)"
	exit 1
fi
echo "everything is clean"
