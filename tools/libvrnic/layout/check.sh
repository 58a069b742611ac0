#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Checks the layouts in src/ffi against the headers of each release of rdma-core that a provider is built for.
#
#   check.sh [--update] SOURCES [PROVIDERS]
#   check.sh --cost SOURCES PROVIDERS
#
# SOURCES contains the unpacked sources of rdma-core: SOURCES/56.1 and SOURCES/65.0. The script compiles a C program
# that prints every size, offset and constant on which the Rust code relies, and the prototypes, with those headers.
# The output must equal the committed layout/<release>.txt, which `cargo test` compares with the Rust code; --update
# writes that file instead. PROVIDERS is the directory that build.sh filled. If it is given, layout/exercise.c
# is built with the same headers and runs each provider against a device that is an array, also under valgrind, which
# watches how it uses memory. --cost instead has callgrind count the instructions of posting and polling (layout/cost.c).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
update=
cost=
case ${1:-} in
--update) update=1 && shift ;;
--cost) cost=1 && shift ;;
esac
[ $# -eq 2 ] || { [ $# -eq 1 ] && [ -z "$cost" ]; } || {
	echo "usage: check.sh [--update] SOURCES [PROVIDERS], or check.sh --cost SOURCES PROVIDERS" >&2
	exit 1
}
sources=$(cd "$1" && pwd)
providers=${2:+$(cd "$2" && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# headers RELEASE PABI: creates the include directory that rdma-core's own build would create, as far as driver.h needs
# it.
headers() {
	local from=$sources/$1 to=$work/$1 header
	[ -f "$from/libibverbs/driver.h" ] || { echo "check.sh: $from is not the source of rdma-core $1" >&2; exit 1; }
	mkdir -p "$to/infiniband" "$to/kernel-abi"
	ln -s "$from"/libibverbs/*.h "$from"/kernel-headers/rdma/ib_user_ioctl_verbs.h "$to/infiniband/"
	ln -s "$from/kernel-headers/rdma" "$to/rdma"
	ln -s "$from/ccan" "$to/ccan"
	ln -s "$from/util" "$to/util"
	for header in ib_user_verbs ib_user_ioctl_verbs; do
		python3 "$from/buildlib/make_abi_structs.py" "$from/kernel-headers/rdma/$header.h" "$to/kernel-abi/$header.h"
	done
	printf '#define IBVERBS_PABI_VERSION %s\n' "$2" >"$to/config.h"
}

# program PABI: prints the C program that evaluates the expressions of src/ffi/check.rs.
program() {
	cat <<-'C'
		#include <stddef.h>
		#include <stdint.h>
		#include <stdio.h>
		#include <infiniband/driver.h>
		#include "prototypes.h"
		int main(void)
		{
	C
	(cd "$here/.." && VRNIC_PABI=$1 cargo test --release -q -p libvrnic --lib -- --ignored --nocapture print_questions) |
		sed -n 's/.*QUESTION \(.*\)$/\tprintf("%s %llu\\n", "\1", (unsigned long long)(\1));/p'
	printf '\treturn 0;\n}\n'
}

# player RELEASE PABI LEVEL SYMBOL PROGRAM: builds PROGRAM as libibverbs, and a program that loads a provider and runs
# it. SYMBOL is the symbol by which the provider recognises that LEVEL.
player() {
	local release=$1 pabi=$2 level=$3 symbol=$4 dir=$work/$1.lib options=-g
	# Without debug information, callgrind has one number for each function, with what was inlined into it.
	[ -z "$cost" ] || options=-O2
	mkdir "$dir"
	printf 'IBVERBS_1.1 { global: ibv_dofork_range; ibv_dontfork_range; };\nIBVERBS_1.%s { global: %s; };\n' \
		"$level" "$symbol" >"$dir/map"
	printf 'IBVERBS_PRIVATE_%s { global: *; };\n' "$pabi" >>"$dir/map"
	${CC:-cc} -std=gnu11 -D_GNU_SOURCE $options -Wall -Wno-unused -I"$work/$release" \
		-I"$here/../../../include/uapi/rdma" -shared -fPIC -Wl,-soname,libibverbs.so.1 \
		-Wl,--version-script="$dir/map" -o "$dir/libibverbs.so.1" "$here/$5"
	cat >"$dir/main.c" <<-'C'
		#include <dlfcn.h>
		#include <stdio.h>
		void exercise(void);
		int main(int argc, char **argv)
		{
			if (!dlopen(argv[1], RTLD_NOW)) {
				fprintf(stderr, "%s\n", dlerror());
				return 1;
			}
			exercise();
			return 0;
		}
	C
	${CC:-cc} -o "$dir/main" "$dir/main.c" "$dir/libibverbs.so.1" -ldl
}

# exercise RELEASE PABI LEVEL SYMBOL: runs the provider, also under valgrind.
exercise() {
	local release=$1 run=("$work/$1.lib/main" "$providers/libvrnic-rdmav$2.so")
	player "$@" exercise.c
	LD_LIBRARY_PATH=$work/$release.lib "${run[@]}"
	echo "rdma-core $release: the provider does what its structures say"
	LD_LIBRARY_PATH=$work/$release.lib valgrind --quiet --error-exitcode=3 "${run[@]}"
	echo "rdma-core $release: valgrind has no complaints"
}

# measure RELEASE PABI LEVEL SYMBOL: prints the instructions of each call, for one request or completion.
measure() {
	local count
	headers "$1" "$2"
	player "$@" cost.c
	count=$(LD_LIBRARY_PATH=$work/$1.lib valgrind --quiet --tool=callgrind --callgrind-out-file="$work/calls" \
		"$work/$1.lib/main" "$providers/libvrnic-rdmav$2.so")
	callgrind_annotate --inclusive=yes --threshold=100 --show=Ir "$work/calls" |
		sed -n 's/^ *\([0-9,]*\) .*:cost_\([a-z_]*\).*/\1 \2/p' | tr -d , |
		awk -v count="$count" '{ printf "%7.1f  %s\n", $1 / count, $2 } END { exit !NR }' | sort -k 2 ||
		{ echo "check.sh: callgrind has counted nothing" >&2; exit 1; }
}

# check RELEASE PABI
check() {
	local release=$1 pabi=$2 answers=$work/$1.txt
	headers "$release" "$pabi"
	program "$pabi" >"$work/$release.c"
	${CC:-cc} -std=gnu11 -Wall -Werror -Wno-unused -I"$work/$release" -I"$here" -o "$work/$release.bin" \
		"$work/$release.c"
	{
		echo "# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause"
		echo "# Sizes, offsets, constants of rdma-core $release (private ABI $pabi, $(uname -m)), from layout/check.sh."
		"$work/$release.bin"
	} >"$answers"
	[ "$(wc -l <"$answers")" -gt 100 ] || { echo "check.sh: no questions to ask" >&2; exit 1; }
	if [ -n "$update" ]; then
		cp "$answers" "$here/$release.txt"
	else
		diff -u "$here/$release.txt" "$answers"
	fi
	echo "rdma-core $release (private ABI $pabi): $(($(wc -l <"$answers") - 2)) values and all prototypes agree"
}

if [ -n "$cost" ]; then
	measure 65.0 65 18 _ibv_query_comp_cntr_caps
	exit
fi
check 56.1 34
[ -z "$providers" ] || exercise 56.1 34 14 ibv_query_qp_data_in_order
check 65.0 65
[ -z "$providers" ] || exercise 65.0 65 18 _ibv_query_comp_cntr_caps
