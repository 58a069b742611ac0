# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# rdma-core's own tests: what pyverbs.pass lists must pass, and nothing may fail. A skip of a listed test is a failure:
# any refusal with EOPNOTSUPP is a skip to pyverbs.
# lab: timeout=300
. "$LAB_LIB"

[ "$DEV" = vrnic0 ] || skip "the list is that of vrnic"
list=$(dirname "${BASH_SOURCE[0]}")/pyverbs.pass
[ -f "$list" ] || fail "$list is missing"
out=$(mktemp)
trap 'rm -f "$out"' EXIT

on -t 240 a sh -c 'cp -r /usr/share/doc/rdma-core/tests /tmp/tests && cd /tmp && gunzip -q tests/*.gz
	python3 tests/run_tests.py --dev "$1" --gid "$2" -v $(printf "tests.test_%s " addr atomic cq cq_events cqex device \
		fork mr parent_domain pd qp qpex rdmacm relaxed_ordering) 2>&1' sh "$DEV" "$GID_INDEX" >"$out" ||
	{ tail -n 60 "$out"; fail "pyverbs failed"; }

# The result stands behind the name, or behind the description on the next line, or after noise.
passed=$(awk '/^test_[a-z0-9_]+ \(/ { id = substr($2, 2, length($2) - 2) } /(^| \.\.\. )ok$/ { print id }' "$out")
missing=$(grep -v '^#' "$list" | grep -vxF "$passed" || true)
[ -z "$missing" ] || fail "did not pass:
$missing"
echo "$(printf '%s\n' "$passed" | wc -l) tests of pyverbs passed"
