# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Ten thousand queue pairs, a hundred thousand memory regions and five hundred processes work at the same time, and all
# can be destroyed.
# lab: fabric=local
# lab: timeout=1800
# lab: fresh
# lab: long
. "$LAB_LIB"

for many in 'qp 10000' 'mr 100000' 'process 500'; do
	on -t 900 a vrnic-scale --device "$DEV" --gid "$GID_INDEX" $many
done
