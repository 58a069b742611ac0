#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Tests the series: generates it, reads it with checkpatch.pl, applies it to the sources of the lab's kernel, and builds
# it without warnings, with INFINIBAND as a module and built in. Success is recorded for all trees of this user: nothing
# is built again until an input changes.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/series/lib.sh

bash tools/series/series.sh
inputs=$({ echo "$KERNEL"; /usr/bin/rustc --version; cat "$BUILT/make" "$CONFIG" tools/series/{build.sh,style.sh,config} \
	build/series/0*.patch | grep -vE '^(From|Date|Subject): '; } | sha256sum)
passed=$CACHE/series-passed
if [ "$(cat "$passed" 2>/dev/null)" = "$inputs" ]; then
	echo "already built, and nothing has changed since"
	exit
fi
bash tools/series/style.sh
for infiniband in m y; do
	log=build/series/build-$infiniband.log
	if ! bash tools/series/build.sh "$infiniband" >"$log" 2>&1 || grep -E '^(warning|error)|: warning: ' "$log" | grep -v 'override: reassigning'; then
		grep -nE -A 12 '^(warning|error)|\*\*\*' "$log" | head -n 40
		echo "INFINIBAND=$infiniband does not build; see $log"
		exit 1
	fi
done
echo "$inputs" >"$passed"
