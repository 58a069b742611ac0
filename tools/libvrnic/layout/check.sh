#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Checks the layouts in src/ffi against the headers of the releases of rdma-core in layout/releases.
#
#   check.sh [--update] SOURCES [PROVIDERS]
#   check.sh --cost SOURCES PROVIDERS
#
# SOURCES contains the unpacked sources of rdma-core, such as SOURCES/56.1, as sources.sh puts them there. At least 56.1
# and 65.0 must be there; the script says which releases are not, and does not check these. It compiles a C program that
# prints every size, offset and constant on which the Rust code relies, and the prototypes, with the headers of each
# release. The output must equal the committed files, which `cargo test` compares with the Rust code: all.txt has what
# is the same in all releases, and 1.<level>.txt what the releases of a level have of their own. --update writes these
# files first. PROVIDERS is the directory that build.sh filled. If it is given, layout/exercise.c is built with the
# headers of each release and runs its provider against a device that is an array. For the oldest release there of each
# level, it does so under valgrind, too, which watches how the provider uses memory. --cost instead has callgrind count
# the instructions of posting and polling (layout/cost.c).
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

# releases: the rows of layout/releases.
releases() {
	grep '^[0-9]' "$here/releases"
}

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

# program LEVEL: prints the C program that evaluates the expressions of src/ffi/check.rs.
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
	sed -n "s/.*QUESTION \(all\|$1\) \(.*\)\$/\tprintf(\"\1 %s %llu\\\\n\", \"\2\", (unsigned long long)(\2));/p" \
		"$work/questions"
	printf '\treturn 0;\n}\n'
}

# compile RELEASE LEVEL ARGUMENTS: compiles C with the headers of a release.
compile() {
	local include=$work/$1 release=${1%%.*} level=$2
	shift 2
	${CC:-cc} -std=gnu11 -Wall -Wno-unused -I"$include" -I"$here" -D"RELEASE=$release" -D"LEVEL=$level" "$@"
}

# player RELEASE PABI LEVEL PROGRAM: builds PROGRAM as libibverbs, with the symbols by which a provider recognises the
# level, and a program that loads a provider and runs it.
player() {
	local release=$1 pabi=$2 level=$3 dir=$work/$1.lib options=-g
	# Without debug information, callgrind has one number for each function, with what was inlined into it.
	[ -z "$cost" ] || options=-O2
	mkdir "$dir"
	echo 'IBVERBS_1.1 { global: ibv_dofork_range; ibv_dontfork_range; };' >"$dir/map"
	releases | awk -v level="$level" '$3 <= level && !seen[$3]++ { print $3, $4 }' >"$dir/levels"
	sed 's/\(.*\) \(.*\)/IBVERBS_1.\1 { global: \2; };/' "$dir/levels" >>"$dir/map"
	sed 's/.* \(.*\)/void \1(void) {}/' "$dir/levels" >"$dir/levels.c"
	printf 'IBVERBS_PRIVATE_%s { global: *; };\n' "$pabi" >>"$dir/map"
	compile "$release" "$level" -D_GNU_SOURCE $options -I"$here/../../../include/uapi/rdma" -shared -fPIC \
		-Wl,-soname,libibverbs.so.1 -Wl,--version-script="$dir/map" -o "$dir/libibverbs.so.1" "$here/$4" "$dir/levels.c"
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

# exercise RELEASE PABI LEVEL: runs the provider.
exercise() {
	local release=$1 run=("$work/$1.lib/main" "$providers/libvrnic-rdmav$2.so")
	player "$@" exercise.c
	LD_LIBRARY_PATH=$work/$release.lib "${run[@]}"
	echo "rdma-core $release: the provider does what its structures say"
	[[ $watched != *" $3 "* ]] || return 0
	LD_LIBRARY_PATH=$work/$release.lib valgrind --quiet --error-exitcode=3 "${run[@]}"
	echo "rdma-core $release: valgrind has no complaints"
	watched+="$3 "
}

# measure RELEASE PABI LEVEL: prints the instructions of each call, for one request or completion.
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

# agree FILE WHAT: the answers on stdin are those of a committed file, or become them.
agree() {
	{
		echo "# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause"
		echo "# Sizes, offsets, constants of $2 ($(uname -m)), from layout/check.sh."
		cat
	} >"$work/answers"
	if [ -n "$update" ]; then
		cp "$work/answers" "$here/$1"
	else
		diff -u "$here/$1" "$work/answers"
	fi
}

# check RELEASE PABI LEVEL
check() {
	local release=$1 pabi=$2 level=$3
	headers "$release" "$pabi"
	program "$level" >"$work/$release.c"
	compile "$release" "$level" -Werror -o "$work/$release.bin" "$work/$release.c"
	"$work/$release.bin" >"$work/$release.txt"
	[ "$(wc -l <"$work/$release.txt")" -gt 500 ] || { echo "check.sh: no questions to ask" >&2; exit 1; }
	sed -n 's/^all //p' "$work/$release.txt" | agree all.txt "all releases of rdma-core"
	sed -n "s/^$level //p" "$work/$release.txt" | agree "1.$level.txt" "libibverbs at level 1.$level"
	[ -n "$update" ] ||
		echo "rdma-core $release (private ABI $pabi, level 1.$level): $(wc -l <"$work/$release.txt") values and all" \
			"prototypes agree"
}

if [ -n "$cost" ]; then
	measure 65.0 65 18
	exit
fi
(cd "$here/.." && cargo test --release -q -p libvrnic --lib -- --ignored --nocapture print_questions) >"$work/questions"
# Levels that valgrind has watched.
watched=" "
while read -r release pabi level _; do
	if [ ! -d "$sources/$release" ] && [ "$release" != 56.1 ] && [ "$release" != 65.0 ]; then
		echo "rdma-core $release: not checked, $sources has no source of it"
		continue
	fi
	check "$release" "$pabi" "$level"
	[ -z "$providers" ] || [ -n "$update" ] || exercise "$release" "$pabi" "$level"
done < <(releases)
[ -z "$update" ] || exec bash "$here/check.sh" "$sources" ${providers:+"$providers"}
