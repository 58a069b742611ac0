# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Shared by the scripts of this directory, which source it.

# Builds here choose their own number of jobs: stay out of the jobserver of a calling make.
unset MAKEFLAGS MFLAGS MAKELEVEL

# The lab's kernel, or that of KDIR: its build directory, its configuration, and its sources, which nothing here changes.
# The lab's are those of Debian's package linux-source: Linux 7.3.y with Debian's patches.
BUILT=build/kernel/$([ -n "${KDIR:-}" ] && echo own || echo lab)
CONFIG=$(readlink -f "$BUILT/tree/.config")
KERNEL=$(readlink -f "$BUILT/tree")
[ ! -e "$KERNEL/source" ] || KERNEL=$(readlink -f "$KERNEL/source")

# What is kept for the next time, in this tree or another.
CACHE=${VRNIC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vrnic}
