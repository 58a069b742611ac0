/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Headers that the kernel's own bindings do not cover. Sorted alphabetically.
 */

#include <linux/hmm.h>
#include <linux/rtnetlink.h>
#include <linux/netdevice.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/restrack.h>
#include <rdma/uverbs_ioctl.h>
#include <trace/events/vrnic.h>
#include <uapi/linux/virtio_pci.h>

#include "virtio_structure.h"
