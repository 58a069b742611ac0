# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Each kernel allocation fails once in each verb of programs. The verb fails cleanly or works, and nothing leaks.
# lab: timeout=600
# Linux's method that opens a device for a process leaks the process when the driver or the control group refuses it
# (uverbs_std_types_device.c, UVERBS_METHOD_GET_CONTEXT, frees the context without rdma_restrack_put()).
# lab: allow-kernel-leak dup_task_struct|copy_signal|prepare_creds|alloc_task_exec_state
# lab: needs CONFIG_FAILSLAB=y
. "$LAB_LIB"

on -t 580 a python3 /vrnic/tests/pyverbs/failed_allocations.py --device "$DEV" --gid "$GID_INDEX"
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 3
