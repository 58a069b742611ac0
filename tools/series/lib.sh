# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# What the scripts of this directory share. Sourced.

# Builds here have jobs of their own.
unset MAKEFLAGS MFLAGS MAKELEVEL

# The lab's kernel, or that of KDIR: with what it was configured and built, and its pristine sources, which nothing changes.
BUILT=build/kernel/$([ -n "${KDIR:-}" ] && echo own || echo lab)
CONFIG=$(readlink -f "$BUILT/tree/.config")
KERNEL=$(readlink -f "$BUILT/tree")
[ ! -e "$KERNEL/source" ] || KERNEL=$(readlink -f "$KERNEL/source")

# What is kept for the next time, in this tree or another.
CACHE=${VRNIC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vrnic}
