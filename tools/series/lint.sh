#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Reads the kernel with the patches of build/series as clippy and rustdoc do, and runs `make rusttest`. Warnings about a
# file of the patches are errors; the rest of the kernel has warnings of its own.
#
# The examples in the documentation of the abstractions are not compiled: they show drivers, which are crates of their
# own, and `make rusttest` and the kernel's doctests compile examples within a function.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH
log=build/series/lint.log objects=build/series/objects-clippy failed=0

# complaints: prints the warnings and errors of a compiler about files of the patches, with where they are.
complaints() {
	awk -v list=build/series/files '
		BEGIN { while ((getline line < list) > 0) { sub(/^\.\//, "", line); ours[line] = 1 } }
		/^(warning|error)/ { message = $0; next }
		message != "" && /^ *--> / {
			path = $2
			sub(/:[0-9]+:[0-9]+$/, "", path)
			for (it in ours) if (path == it || substr(path, length(path) - length(it)) == "/" it) print message "\n  " $2
			message = ""
		}' "$1"
}

# Clippy sees only what is compiled, so compile the crates of the patches again.
bash tools/series/build.sh m all CLIPPY=1 outputmakefile >"$log" 2>&1
rm -f $objects/rust/kernel.o
find $objects/drivers/infiniband/{rust,hw/vrnic} -name '*.o' -delete 2>/dev/null || true
bash tools/series/build.sh m all CLIPPY=1 prepare drivers/infiniband/ rustdoc rusttest >>"$log" 2>&1 || {
	grep -nE -A 12 '^error|\*\*\*' "$log" | head -n 40
	echo "clippy, rustdoc or rusttest fails; see $log"
	exit 1
}
complaints "$log" >build/series/complaints
[ ! -s build/series/complaints ] || failed=1
cat build/series/complaints
# The target `rustdoc` documents the kernel's own crates only.
bash tools/setup/rustdoc.sh $objects build/series/doc \
	drivers/infiniband/{rust/lib,rust/example/lib,hw/vrnic/wire/vrnic_wire,hw/vrnic/trace/vrnic_trace,hw/vrnic/main} >>"$log" 2>&1 || {
	failed=1
	grep -nE -A 6 '^(warning|error)' "$log" | tail -n 40
}
exit $failed
