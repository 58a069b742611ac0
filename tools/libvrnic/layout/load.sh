#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Loads each provider into libraries that claim to be libibverbs of several levels. It must register itself with those
# in layout/releases and with no other.
#
#   load.sh DIRECTORY       DIRECTORY contains the objects that build.sh built
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
providers=$(cd "${1:?usage: load.sh DIRECTORY}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# symbols LEVEL: prints a symbol for that level and for each older one, if layout/releases has it, as "LEVEL SYMBOL".
symbols() {
	awk -v level="$1" '/^[0-9]/ && $3 <= level && !seen[$3]++ { print $3, $4 } END { if (!seen[level]) print level, "own" }' \
		"$here/releases"
}

# library ABI LEVEL: builds a libibverbs of that private ABI and public level, which reports when a provider registers.
# It has the symbols of that level and of older ones.
library() {
	local abi=$1 level=$2 names name
	names=$(nm -D --undefined-only "$providers/libvrnic-rdmav$abi.so" | sed -n "s/.* \(.*\)@IBVERBS_PRIVATE_$abi\$/\1/p")
	{
		echo '#include <stdio.h>'
		for name in $names; do
			case $name in
			verbs_register_driver_*) echo "void $name(void) { puts(\"registered\"); }" ;;
			*) echo "void $name(void) {}" ;;
			esac
		done
		echo 'void ibv_dofork_range(void) {} void ibv_dontfork_range(void) {}'
		symbols "$level" | sed 's/.* \(.*\)/void \1(void) {}/'
	} >"$work/stub.c"
	{
		echo "IBVERBS_1.1 { ibv_dofork_range; ibv_dontfork_range; };"
		symbols "$level" | sed 's/\(.*\) \(.*\)/IBVERBS_1.\1 { \2; };/'
		echo "IBVERBS_PRIVATE_$abi { global:"
		printf '%s;\n' $names
		echo "local: *; };"
	} >"$work/stub.map"
	cc -shared -fPIC -Wl,-soname,libibverbs.so.1 -Wl,--version-script="$work/stub.map" -o "$work/libibverbs.so.1" \
		"$work/stub.c"
}

cat >"$work/load.c" <<'E2'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	if (argc == 2 && dlopen(argv[1], RTLD_NOW))
		return 0;
	fprintf(stderr, "%s\n", dlerror());
	return 1;
}
E2
cc -o "$work/load" "$work/load.c" -ldl

# expect WHAT ABI LEVEL
expect() {
	local what=$1 said
	shift
	library "$@"
	said=$(LD_LIBRARY_PATH=$work "$work/load" "$providers/libvrnic-rdmav$1.so")
	if [ "$said" != "$what" ]; then
		echo "load.sh: private ABI $1, level 1.$2: expected '$what', got '$said'" >&2
		exit 1
	fi
}

# The levels of each private ABI, and the ones before and after.
while read -r abi levels; do
	for level in $levels; do expect registered "$abi" "$level"; done
	expect "" "$abi" $((${levels%% *} - 1))
	expect "" "$abi" $((${levels##* } + 1))
done < <(awk '/^[0-9]/ && !seen[$2 " " $3]++ { levels[$2] = levels[$2] " " $3 }
	END { for (abi in levels) print abi levels[abi] }' "$here/releases")
echo "providers register with their own levels of libibverbs only"
