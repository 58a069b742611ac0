// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers for C functions that bindgen cannot translate (inlines and macros),
 * which Rust calls under their own name. One file per subsystem, as in
 * rust/helpers of the kernel tree. Sorted alphabetically.
 */

#include <linux/compiler_types.h>

#include "../bindings/virtio_structure.h"

#ifdef __BINDGEN__
#define __rust_helper
#elif !defined(__rust_helper)
#define __rust_helper
#endif

#include "device.c"
#include "dma.c"
#include "dma_buf.c"
#include "mm.c"
#include "netdevice.c"
#include "netlink.c"
#include "rdma.c"
#include "task.c"
#include "uverbs.c"
#include "virtio.c"
