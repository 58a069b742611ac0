#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Copies the kernel module's sources to a build directory: module-sources.sh DIRECTORY
# The module is built in such copies, so that its builds (plain, with KUnit, with clippy) disturb neither each other nor
# the tree. Unchanged files keep their times: only what changed is compiled.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1"
rsync -rtm --exclude='*_generated.rs' --exclude='*.mod.c' --include='*/' --include='*.rs' --include='*.[ch]' \
	--include='Kbuild' --include='Kconfig' --include='bindgen_parameters' --exclude='*' \
	Kbuild Kconfig rust drivers include "$1"
