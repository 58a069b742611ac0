# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A process that writes garbage into its rings, notify area and doorbell page harms only itself.
# lab: timeout=300
. "$LAB_LIB"

on -t 200 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --port 18700 --seconds 60 --qps 2 &
neighbour=$!
on -t 200 b vrnic-stress --device "$DEV" --gid "$GID_INDEX" --port 18701 --seconds 60 --qps 2 &
other=$!
on -t 200 a vrnic-abuse --device "$DEV"
on -t 60 a sh -c 'timeout -s KILL 6 vrnic-abuse --device '"$DEV"' --only garbage --seconds 60; true'
wait $neighbour || fail "a process of the same VM noticed"
wait $other || fail "the other VM noticed"
