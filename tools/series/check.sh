#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Builds the kernel after each patch of build/series, or after patches FROM to TO: check.sh [FROM [TO [TARGET...]]], see
# build.sh. Warnings are counted but allowed: patches in the middle of the series add code whose users come in a later
# patch.
set -euo pipefail
cd "$(dirname "$0")/../.."
count=$(($(ls build/series/0*.patch | wc -l) - 1))
from=${1:-1} to=${2:-$count}
shift $(($# < 2 ? $# : 2))
for ((number = from; number <= to; number++)); do
	log=build/series/check-$number.log
	subject=$(ls build/series/"$(printf %04d "$number")"-*)
	if bash tools/series/build.sh m "$number" "$@" >"$log" 2>&1; then
		echo "builds, $(grep -cE '^warning: |: warning: ' "$log" || true) warnings: ${subject##*/}"
	else
		grep -nE -A 12 '^error|\*\*\*' "$log" | head -n 40
		echo "does not build: ${subject##*/}; see $log"
		exit 1
	fi
done
