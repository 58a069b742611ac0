// SPDX-License-Identifier: GPL-2.0
/*
 * Sizes and offsets according to the kernel's C compiler. bindgen uses libclang
 * instead, with flags of our choosing; lib.rs asserts that both agree.
 */

#include <linux/kbuild.h>

#include "bindings_helper.h"

void vrnic_layout(void);

void vrnic_layout(void)
{
	DEFINE(SIZEOF_IB_AH, sizeof(struct ib_ah));
	DEFINE(SIZEOF_IB_CQ, sizeof(struct ib_cq));
	DEFINE(SIZEOF_IB_DEVICE, sizeof(struct ib_device));
	DEFINE(SIZEOF_IB_DEVICE_OPS, sizeof(struct ib_device_ops));
	DEFINE(SIZEOF_IB_DM, sizeof(struct ib_dm));
	DEFINE(SIZEOF_IB_MR, sizeof(struct ib_mr));
	DEFINE(SIZEOF_IB_MW, sizeof(struct ib_mw));
	DEFINE(SIZEOF_IB_PD, sizeof(struct ib_pd));
	DEFINE(SIZEOF_IB_QP, sizeof(struct ib_qp));
	DEFINE(SIZEOF_IB_SRQ, sizeof(struct ib_srq));
	DEFINE(SIZEOF_IB_UCONTEXT, sizeof(struct ib_ucontext));
	DEFINE(SIZEOF_IB_UMEM, sizeof(struct ib_umem));
	DEFINE(SIZEOF_IB_UMEM_ODP, sizeof(struct ib_umem_odp));
	DEFINE(SIZEOF_IB_PORT_ATTR, sizeof(struct ib_port_attr));
	DEFINE(SIZEOF_IB_DEVICE_ATTR, sizeof(struct ib_device_attr));
	DEFINE(SIZEOF_IB_QP_ATTR, sizeof(struct ib_qp_attr));
	DEFINE(SIZEOF_IB_QP_INIT_ATTR, sizeof(struct ib_qp_init_attr));
	DEFINE(SIZEOF_IB_WC, sizeof(struct ib_wc));
	DEFINE(SIZEOF_IB_SEND_WR, sizeof(struct ib_send_wr));
	DEFINE(SIZEOF_IB_REG_WR, sizeof(struct ib_reg_wr));
	DEFINE(SIZEOF_IB_RECV_WR, sizeof(struct ib_recv_wr));
	DEFINE(SIZEOF_IB_BLOCK_ITER, sizeof(struct ib_block_iter));
	DEFINE(SIZEOF_RDMA_AH_ATTR, sizeof(struct rdma_ah_attr));
	DEFINE(SIZEOF_RDMA_USER_MMAP_ENTRY, sizeof(struct rdma_user_mmap_entry));
	DEFINE(SIZEOF_UAPI_DEFINITION, sizeof(struct uapi_definition));
	DEFINE(SIZEOF_UVERBS_ATTR_BUNDLE, sizeof(struct uverbs_attr_bundle));
	DEFINE(SIZEOF_UVERBS_ATTR_DEF, sizeof(struct uverbs_attr_def));
	DEFINE(SIZEOF_UVERBS_ATTR_SPEC, sizeof(struct uverbs_attr_spec));
	DEFINE(SIZEOF_UVERBS_METHOD_DEF, sizeof(struct uverbs_method_def));
	DEFINE(SIZEOF_UVERBS_OBJECT_DEF, sizeof(struct uverbs_object_def));
	DEFINE(SIZEOF_VIRTIO_DEVICE, sizeof(struct virtio_device));
	DEFINE(SIZEOF_VIRTIO_DRIVER, sizeof(struct virtio_driver));
	DEFINE(SIZEOF_VIRTIO_CONFIG_OPS, sizeof(struct virtio_config_ops));
	DEFINE(SIZEOF_VIRTQUEUE, sizeof(struct virtqueue));
	DEFINE(OFFSETOF_IB_DEVICE_OPS, offsetof(struct ib_device, ops));
	DEFINE(OFFSETOF_IB_DEVICE_DEV, offsetof(struct ib_device, dev));
	DEFINE(OFFSETOF_IB_DEVICE_ATTRS, offsetof(struct ib_device, attrs));
	DEFINE(OFFSETOF_IB_DEVICE_PHYS_PORT_CNT, offsetof(struct ib_device, phys_port_cnt));
	DEFINE(OFFSETOF_IB_DEVICE_NUM_COMP_VECTORS, offsetof(struct ib_device, num_comp_vectors));
	DEFINE(OFFSETOF_IB_CQ_COMP_HANDLER, offsetof(struct ib_cq, comp_handler));
	DEFINE(OFFSETOF_IB_QP_QP_NUM, offsetof(struct ib_qp, qp_num));
	DEFINE(OFFSETOF_IB_QP_EVENT_HANDLER, offsetof(struct ib_qp, event_handler));
	DEFINE(OFFSETOF_IB_MR_LKEY, offsetof(struct ib_mr, lkey));
	DEFINE(OFFSETOF_IB_UMEM_SGT_APPEND, offsetof(struct ib_umem, sgt_append));
	DEFINE(OFFSETOF_IB_UMEM_ODP_MAP, offsetof(struct ib_umem_odp, map));
	DEFINE(OFFSETOF_IB_UMEM_ODP_NOTIFIER, offsetof(struct ib_umem_odp, notifier));
	DEFINE(OFFSETOF_IB_UMEM_ODP_UMEM_MUTEX, offsetof(struct ib_umem_odp, umem_mutex));
	DEFINE(OFFSETOF_VIRTIO_DEVICE_DEV, offsetof(struct virtio_device, dev));
	DEFINE(OFFSETOF_VIRTIO_DEVICE_PRIV, offsetof(struct virtio_device, priv));
	DEFINE(OFFSETOF_VIRTIO_DEVICE_CONFIG, offsetof(struct virtio_device, config));
	DEFINE(OFFSETOF_VIRTIO_DRIVER_PROBE, offsetof(struct virtio_driver, probe));
	DEFINE(OFFSETOF_VIRTQUEUE_INDEX, offsetof(struct virtqueue, index));
	DEFINE(OFFSETOF_VIRTQUEUE_VDEV, offsetof(struct virtqueue, vdev));
}
