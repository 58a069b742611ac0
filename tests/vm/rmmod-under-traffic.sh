# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The module is removed under traffic, with open contexts: programs get errors. After that, it loads and works again.
# lab: fabric=local
# lab: fabric=roce
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
# lab: fresh
. "$LAB_LIB"

on -t 90 a sh -c "vrnic-stress --device $DEV --seconds $((60 * LAB_SLOWNESS)) && exit 9; true" &
client=$!
moving() { [ "$(on a cat "/sys/class/infiniband/$DEV/ports/1/hw_counters/completions")" -gt 1000 ]; }
within 60 moving || fail "no traffic"
on -t 60 a rmmod vrnic
wait $client || fail "traffic continued without a device"
on -t 60 a modprobe vrnic
active a
on -t 60 a vrnic-stress --device "$DEV" --seconds 3
