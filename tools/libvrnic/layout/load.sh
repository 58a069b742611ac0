#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Loads the provider into libraries that claim to be libibverbs of several levels. It must register itself with the one
# that it was built for and with no other.
#
#   load.sh DIRECTORY       DIRECTORY contains the objects that build.sh built
set -euo pipefail

providers=$(cd "${1:?usage: load.sh DIRECTORY}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# library ABI LEVEL SYMBOL: builds a libibverbs of that private ABI and public level, which reports when a provider
# registers.
library() {
	local abi=$1 level=$2 symbol=$3 names name
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
		echo "void $symbol(void) {}"
		echo 'void newest(void) {}'
	} >"$work/stub.c"
	{
		echo "IBVERBS_1.1 { ibv_dofork_range; ibv_dontfork_range; };"
		# The version of the symbol is fixed; a library of an older level does not have the symbol.
		if [ "$level" -ge "$4" ]; then echo "IBVERBS_1.$4 { $symbol; };"; fi
		if [ "$level" -ne "$4" ]; then echo "IBVERBS_1.$level { newest; };"; fi
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

# expect WHAT ABI LEVEL SYMBOL OWN-LEVEL
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

expect registered 34 14 ibv_query_qp_data_in_order 14
expect "" 34 13 ibv_query_qp_data_in_order 14
expect "" 34 15 ibv_query_qp_data_in_order 14
expect registered 65 18 _ibv_query_comp_cntr_caps 18
expect "" 65 17 _ibv_query_comp_cntr_caps 18
expect "" 65 19 _ibv_query_comp_cntr_caps 18
echo "providers register with their own level of libibverbs only"
