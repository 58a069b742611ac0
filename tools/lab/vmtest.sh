# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Sourced by VM tests (tests/vm/*.sh), which run on the host: `. "$LAB_LIB"`. See tools/lab/README.md.
set -euo pipefail

# on [-t SECONDS] VM COMMAND...: runs a command in a VM; streams and exit code pass through.
on() {
	local timeout=60
	if [ "$1" = -t ]; then
		timeout=$2
		shift 2
	fi
	local vm=$1
	shift
	"$LAB_BIN" exec --vm "$vm" --timeout "$timeout" -- "$@" </dev/null
}

# lab REQUEST...: asks or steers the lab, see `vrnic-lab ctl --help`.
lab() { "$LAB_BIN" ctl "$@"; }

# perf CLIENT SERVER PROGRAM ARGS...: a perftest or pingpong pair; prints the client's output.
perf() { "$LAB_BIN" ctl perf "$@"; }

# vrnicctl ARGS...: asks the lab's vrnicd, on the host.
vrnicctl() { "$VRNICCTL" "$@"; }

# fail TEXT...: ends the test.
fail() {
	printf 'FAIL: %s\n' "$*" >&2
	exit 1
}

# skip TEXT...: ends the test as skipped.
skip() {
	printf 'skipped: %s\n' "$*"
	exit 77
}
