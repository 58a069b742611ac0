# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A memory window of one VM gives the other access to its memory. When the window is invalidated, its key is no longer
# valid.
# lab: fabric=local
# lab: fabric=roce
. "$LAB_LIB"

program=/vrnic/tests/pyverbs/remote_window.py
for server in a b; do
	[ $server = a ] && client=b || client=a
	address=IP_$server
	on -t 120 $server python3 $program --device "$DEV" --gid "$GID_INDEX" --server &
	job=$!
	on -t 120 $client python3 $program --device "$DEV" --gid "$GID_INDEX" --client "${!address}" ||
		fail "a window of $server, used by $client"
	wait $job || fail "a window of $server, used by $client"
done
