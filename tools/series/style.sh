#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Holds build/series against the kernel's own rules: `checkpatch.pl --strict` may say of a patch only what the cover
# letter explains.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/series/lib.sh
# Columns, not bytes.
export LC_ALL=C.UTF-8
log=build/series/checkpatch.log

# is_explained TYPE PATCH LINE: whether the cover letter says why that is so.
is_explained() {
	local path columns
	path=$(sed -n "1,$3s|^+++ b/||p" "$2" | tail -n 1)
	case $1:$path in
	EXPORT_SYMBOL:*/exports.c | MACRO_ARG_REUSE:*/exports.c) ;;
	OPEN_ENDED_LINE:include/trace/events/*.h | PARENTHESIS_ALIGNMENT:include/trace/events/*.h) ;;
	LONG_LINE:* | LONG_LINE_COMMENT:*)
		columns=$(sed -n "$3s/^+//p" "$2" | wc -L)
		[ "$columns" -le 100 ]
		;;
	*) false ;;
	esac
}

# Only the author can sign, and does it last.
perl "$KERNEL/scripts/checkpatch.pl" --strict --no-tree --terse --show-types --no-summary \
	--ignore FILE_PATH_CHANGES,MISSING_SIGN_OFF build/series/000[1-9]-* build/series/00[1-9]?-* >"$log" 2>&1 || true
failed=0
while IFS=: read -r patch line _ type message; do
	[[ $patch == *.patch ]] || { echo "$patch:$line:$type:$message"; failed=1; continue; }
	is_explained "$type" "$patch" "$line" || { echo "$patch:$line: $type:$message"; failed=1; }
done <"$log"
exit "$failed"
