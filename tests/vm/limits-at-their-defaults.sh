# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# With the default configuration the device reaches the limits that it reports, for protection domains, completion
# queues, queue pairs and contexts.
# lab: fabric=local
# lab: timeout=900
# lab: long
# limits-to-the-last-object tests memory regions with lower limits: a million take ten minutes.
. "$LAB_LIB"

on -t 880 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --slow pd-count cq-count qp-count context-count
