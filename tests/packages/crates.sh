#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The crates that other programs can use are fit for crates.io: each package builds from what it contains.
set -euo pipefail
cd "$(dirname "$0")/../../tools"
(. setup/lib.sh; need_space 1000 "the build of crates" "$PWD")
env -u MAKEFLAGS -u MFLAGS cargo publish --dry-run --allow-dirty -p vrnic_wire -p vrnic-engine -p vrnic-infiniband -p vrnic-roce -p vrnic-switch -p vrnic-vfio-user
echo "ok: the crates can be published"
