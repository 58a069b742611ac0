# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A process that writes garbage into its rings, notify area and doorbell page harms only itself.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=300
. "$LAB_LIB"

busy a 18700 &
neighbour=$!
busy b 18701 &
other=$!
on -t 200 a vrnic-abuse --device "$DEV"
on -t 60 a sh -c 'timeout -s KILL 6 vrnic-abuse --device '"$DEV"' --only garbage --seconds 60; true'
enough a 18700
enough b 18701
wait $neighbour || fail "a process in the same VM was disturbed"
wait $other || fail "the other VM was disturbed"
