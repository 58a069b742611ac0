#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `make fuzz`: libFuzzer searches for inputs that make a target of this crate panic, hang or use too much memory.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH
# cargo must not use the jobs of the make that called this.
unset MAKEFLAGS MFLAGS
out=build/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
program=$out/target/$host/fuzz/vrnic-fuzz

usage() {
	cat <<-EOF
	usage: run.sh all [PART] [MINUTES]       build, then fuzz each target whose name contains PART
	       run.sh build                      build the instrumented program, with overflow checks
	       run.sh search TARGET [MINUTES]    fuzz one target; new inputs go to $out/TARGET, crashes to $out/crashes/TARGET
	       run.sh minimise TARGET            regenerate the corpus in the source tree from all inputs found so far
	       run.sh one TARGET FILE...         run single inputs, such as a crash
	targets: $(targets | xargs)
	EOF
}

targets() { sed -n 's/^    ("\([a-z_]*\)", .*/\1/p' tools/fuzz/src/lib.rs; }

# The flags of cargo-fuzz, except for the sanitizer, which needs an unstable compiler. With --target, build scripts are
# not instrumented. libFuzzer itself is C++ that comes with the crate; the clang that bindgen needs compiles it.
build() {
	local flags=(
		-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
		-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
		-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing
	)
	mkdir -p "$out"
	[ -d "$out/target" ] || (. tools/setup/lib.sh; need_space 1500 "the instrumented program" "$out")
	CXX=${CXX:-$(command -v clang++-19 || command -v clang++ || echo c++)} RUSTFLAGS="${flags[*]}" \
		cargo build --manifest-path tools/Cargo.toml -p vrnic-fuzz --profile fuzz --target "$host" \
		--features libfuzzer,libfuzzer-sys/link_libfuzzer --target-dir "$out/target"
}

# An input that takes 20 seconds counts as a hang, even on a busy machine. The daemon has its own handler for SIGBUS.
fuzz() {
	local target=$1
	shift
	VRNIC_FUZZ=$target "$program" -timeout=20 -rss_limit_mb=1024 -malloc_limit_mb=256 -handle_bus=0 "$@"
}

search() {
	local target=$1 minutes=${2:-30}
	mkdir -p "$out/$target" "$out/crashes/$target"
	echo "== $target, $minutes minutes; log: $out/$target.log"
	if fuzz "$target" -max_len=2048 -len_control=20 -max_total_time=$((minutes * 60)) -print_final_stats=1 \
		-artifact_prefix="$out/crashes/$target/" "$out/$target" "tools/fuzz/corpus/$target" >"$out/$target.log" 2>&1; then
		grep -E '^(Done|stat::(number_of_executed|peak_rss))' "$out/$target.log"
	else
		grep -A 3 -m 1 -E 'panicked|ERROR: libFuzzer' "$out/$target.log"
		grep 'Test unit written' "$out/$target.log"
		return 1
	fi
}

all() {
	local target bad=0
	build
	for target in $(targets | grep -F -- "${1:-}"); do
		search "$target" "${2:-30}" || bad=1
	done
	return $bad
}

# Reduces the inputs to a smallest set that covers the same code.
minimise() {
	local target=$1 corpus=tools/fuzz/corpus/$1 few
	few=$(mktemp -d)
	mkdir -p "$corpus" "$out/$target"
	fuzz "$target" -set_cover_merge=1 -use_counters=0 "$few" "$corpus" "$out/$target"
	rm -f "$corpus"/*
	find "$few" -type f -exec cp -t "$corpus" {} +
	rm -rf "$few"
	echo "$(find "$corpus" -type f | wc -l) inputs, $(du -sh --apparent-size "$corpus")"
}

case ${1:-help} in
all | build | search | minimise) "$@" ;;
one) fuzz "${@:2}" ;;
*) usage ;;
esac
