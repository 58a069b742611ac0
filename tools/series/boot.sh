#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Links the kernel with the patches of build/series and everything built in, and boots it in VMs: all KUnit suites of the
# patches must run and pass, and a VM test must find an RNIC that works.
set -euo pipefail
cd "$(dirname "$0")/../.."
objects=build/series/objects-y
bash tools/series/build.sh y all bzImage modules
KDIR=$(readlink -f $objects) tools/target/release/vrnic-lab test --guests --only kunit,stress-loopback --out build/series/boot
