# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The module is loaded and unloaded several times, and the RNIC works each time.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=240
# lab: fresh
. "$LAB_LIB"

for round in $(seq 8); do
	on -t 60 a rmmod vrnic
	on -t 60 a modprobe vrnic
	active a
	on -t 60 a vrnic-stress --device "$DEV" --batches 3
done
