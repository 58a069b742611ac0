# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Removing the module with open contexts under traffic: refused or clean, never a crash; afterwards it loads and works.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=240
# lab: fresh
. "$LAB_LIB"

on -t 90 a sh -c "vrnic-stress --device $DEV --seconds 20; true" &
client=$!
sleep 6
if on -t 60 a rmmod vrnic; then
	echo "rmmod took the module away under open contexts"
else
	echo "rmmod was refused while contexts are open"
fi
wait $client
on -t 60 a sh -c 'lsmod | grep -q "^vrnic " && rmmod vrnic; modprobe vrnic'
active a
on -t 60 a vrnic-stress --device "$DEV" --seconds 3
