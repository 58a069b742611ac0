# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# What the scripts of this directory share. Sourced.

setup() { sed -n "s/^$1=//p" build/setup.env; }

# The pristine sources of the kernel that the lab uses, which are never changed.
KERNEL=$(readlink -f "${KDIR:-$(setup VRNIC_KDIR)}")
[ ! -e "$KERNEL/source" ] || KERNEL=$(readlink -f "$KERNEL/source")
