// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A kernel user of RDMA devices that calls each kernel verb once, in the task
 * that writes to the parameter "run", so that a test can make the allocations
 * of this task fail. The write returns the error of the first verb that
 * failed, or -EREMOTEIO for an object that cannot be destroyed.
 */

#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "connect.h"

#define ENTRIES 8
#define PAGES 4

struct verbs {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_mr *dma_mr;
	struct ib_cq *cq;
	struct ib_cq *direct_cq;
	struct ib_srq *srq;
	struct ib_qp *rc;
	struct ib_qp *shared;
	struct ib_qp *ud;
	struct ib_mr *mr;
	struct ib_ah *ah;
	struct ib_ah *atomic_ah;
	struct ib_cqe cqe;
	struct scatterlist sg[PAGES];
	void *pages;
	bool mapped;
	bool attached;
};

static DEFINE_MUTEX(verbs_lock);
static struct ib_device *verbs_device;

static const union ib_gid verbs_group = {
	.raw = { 0xff, 0x12, [15] = 0x77 },
};

/* Completion handler of flushed receives, in case they are polled before the queue is destroyed. */
static void verbs_done(struct ib_cq *cq, struct ib_wc *wc)
{
}

static int verbs_query(struct verbs *v)
{
	struct ib_udata udata = {};
	struct ib_device_attr *device;
	struct ib_port_attr port;
	u16 pkey;
	int ret;

	device = kzalloc(sizeof(*device), GFP_KERNEL);
	if (!device)
		return -ENOMEM;
	ret = v->dev->ops.query_device(v->dev, device, &udata);
	kfree(device);
	if (!ret)
		ret = ib_query_port(v->dev, 1, &port);
	return ret ?: ib_query_pkey(v->dev, 1, 0, &pkey);
}

/* Allocates a PD and a region of all memory, as the core does for devices without a DMA key. */
static int verbs_pd(struct verbs *v)
{
	v->pd = ib_alloc_pd(v->dev, 0);
	if (IS_ERR(v->pd))
		return PTR_ERR(v->pd);
	v->dma_mr = v->dev->ops.get_dma_mr(v->pd, IB_ACCESS_LOCAL_WRITE);
	if (IS_ERR(v->dma_mr))
		return PTR_ERR(v->dma_mr);
	v->dma_mr->device = v->dev;
	v->dma_mr->pd = v->pd;
	v->dma_mr->type = IB_MR_TYPE_DMA;
	return 0;
}

static int verbs_cqs(struct verbs *v)
{
	v->cq = ib_alloc_cq_any(v->dev, v, 4 * ENTRIES, IB_POLL_SOFTIRQ);
	if (IS_ERR(v->cq))
		return PTR_ERR(v->cq);
	v->direct_cq = ib_alloc_cq(v->dev, v, 2 * ENTRIES, 0, IB_POLL_DIRECT);
	if (IS_ERR(v->direct_cq))
		return PTR_ERR(v->direct_cq);
	return rdma_set_cq_moderation(v->cq, 4, 100);
}

static int verbs_srq(struct verbs *v)
{
	struct ib_srq_init_attr init = {
		.srq_type = IB_SRQT_BASIC,
		.attr = { .max_wr = ENTRIES, .max_sge = 1 },
	};
	struct ib_recv_wr wr = { .wr_cqe = &v->cqe };
	struct ib_srq_attr attr = { .srq_limit = 1 };
	int ret;

	v->srq = ib_create_srq(v->pd, &init);
	ret = PTR_ERR_OR_ZERO(v->srq);
	if (!ret)
		ret = ib_modify_srq(v->srq, &attr, IB_SRQ_LIMIT);
	if (!ret)
		ret = ib_query_srq(v->srq, &attr);
	return ret ?: ib_post_srq_recv(v->srq, &wr, NULL);
}

static int verbs_qp(struct verbs *v, struct ib_qp **qp, enum ib_qp_type type,
		    struct ib_srq *srq)
{
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = ENTRIES,
			.max_recv_wr = srq ? 0 : ENTRIES,
			.max_send_sge = 1,
			.max_recv_sge = srq ? 0 : 1,
		},
		.qp_type = type,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.send_cq = v->cq,
		.recv_cq = v->cq,
		.srq = srq,
	};

	*qp = ib_create_qp(v->pd, &init);
	return PTR_ERR_OR_ZERO(*qp);
}

static int verbs_qps(struct verbs *v)
{
	int ret;

	ret = verbs_qp(v, &v->rc, IB_QPT_RC, NULL);
	if (!ret)
		ret = verbs_qp(v, &v->shared, IB_QPT_RC, v->srq);
	return ret ?: verbs_qp(v, &v->ud, IB_QPT_UD, NULL);
}

static int verbs_group_of_qp(struct verbs *v)
{
	union ib_gid gid = verbs_group;
	int ret;

	ret = ib_attach_mcast(v->ud, &gid, 0);
	v->attached = !ret;
	return ret;
}

static int verbs_mr(struct verbs *v)
{
	int i, ret;

	v->mr = ib_alloc_mr(v->pd, IB_MR_TYPE_MEM_REG, PAGES);
	if (IS_ERR(v->mr))
		return PTR_ERR(v->mr);
	v->pages = kmalloc(PAGES * PAGE_SIZE, GFP_KERNEL);
	if (!v->pages)
		return -ENOMEM;
	sg_init_table(v->sg, PAGES);
	for (i = 0; i < PAGES; i++)
		sg_set_buf(&v->sg[i], v->pages + i * PAGE_SIZE, PAGE_SIZE);
	if (ib_dma_map_sg(v->dev, v->sg, PAGES, DMA_BIDIRECTIONAL) != PAGES)
		return -ENOMEM;
	v->mapped = true;
	ret = ib_map_mr_sg(v->mr, v->sg, PAGES, NULL, PAGE_SIZE);
	return ret == PAGES ? 0 : -ENOMEM;
}

static int verbs_ahs(struct verbs *v)
{
	struct rdma_ah_attr attr = { .type = RDMA_AH_ATTR_TYPE_ROCE };
	union ib_gid gid;
	int index;

	index = connect_gid(v->dev, &gid, attr.roce.dmac);
	if (index < 0)
		return index;
	rdma_ah_set_port_num(&attr, 1);
	rdma_ah_set_grh(&attr, &gid, 0, index, 64, 0);
	v->ah = rdma_create_ah(v->pd, &attr, RDMA_CREATE_AH_SLEEPABLE);
	if (IS_ERR(v->ah))
		return PTR_ERR(v->ah);
	v->atomic_ah = rdma_create_ah(v->pd, &attr, 0);
	if (IS_ERR(v->atomic_ah))
		return PTR_ERR(v->atomic_ah);
	return rdma_query_ah(v->ah, &attr);
}

/* Connects the queue pair to itself. */
static int verbs_connect(struct verbs *v)
{
	return connect_qp(v->rc, v->rc->qp_num, 0);
}

static int verbs_post(struct verbs *v)
{
	struct ib_recv_wr recv = { .wr_cqe = &v->cqe };
	struct ib_reg_wr reg = {
		.wr = {
			.wr_cqe = &v->cqe,
			.opcode = IB_WR_REG_MR,
			.send_flags = IB_SEND_SIGNALED,
		},
		.mr = v->mr,
		.key = v->mr->rkey,
		.access = IB_ACCESS_LOCAL_WRITE,
	};
	struct ib_send_wr send = {
		.wr_cqe = &v->cqe,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
	};
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	int ret;

	ret = ib_post_recv(v->rc, &recv, NULL);
	if (!ret)
		ret = ib_post_send(v->rc, &reg.wr, NULL);
	if (!ret)
		ret = ib_post_send(v->rc, &send, NULL);
	if (!ret)
		ret = ib_query_qp(v->rc, &attr, IB_QP_STATE, &init);
	attr.qp_state = IB_QPS_ERR;
	return ret ?: ib_modify_qp(v->rc, &attr, IB_QP_STATE);
}

static int (*const verbs_steps[])(struct verbs *v) = {
	verbs_query, verbs_pd, verbs_cqs, verbs_srq, verbs_qps,
	verbs_group_of_qp, verbs_mr, verbs_ahs, verbs_connect, verbs_post,
};

/* Whether the object does not exist, or was destroyed. */
#define verbs_gone(object, destroy) (IS_ERR_OR_NULL(object) || !(destroy))

static bool verbs_destroy(struct verbs *v)
{
	union ib_gid gid = verbs_group;
	bool gone = true;

	if (v->attached)
		gone &= !ib_detach_mcast(v->ud, &gid, 0);
	gone &= verbs_gone(v->ah, rdma_destroy_ah_user(v->ah, RDMA_DESTROY_AH_SLEEPABLE, NULL));
	gone &= verbs_gone(v->atomic_ah, rdma_destroy_ah_user(v->atomic_ah, 0, NULL));
	gone &= verbs_gone(v->rc, ib_destroy_qp(v->rc));
	gone &= verbs_gone(v->shared, ib_destroy_qp(v->shared));
	gone &= verbs_gone(v->ud, ib_destroy_qp(v->ud));
	gone &= verbs_gone(v->mr, ib_dereg_mr(v->mr));
	gone &= verbs_gone(v->srq, ib_destroy_srq_user(v->srq, NULL));
	if (!IS_ERR_OR_NULL(v->direct_cq))
		ib_free_cq(v->direct_cq);
	if (!IS_ERR_OR_NULL(v->cq))
		ib_free_cq(v->cq);
	gone &= verbs_gone(v->dma_mr, v->dev->ops.dereg_mr(v->dma_mr, NULL));
	gone &= verbs_gone(v->pd, ib_dealloc_pd_user(v->pd, NULL));
	if (v->mapped)
		ib_dma_unmap_sg(v->dev, v->sg, PAGES, DMA_BIDIRECTIONAL);
	kfree(v->pages);
	return gone;
}

static int verbs_run(struct ib_device *dev)
{
	struct verbs *v;
	int i, ret = 0;

	v = kzalloc(sizeof(*v), GFP_KERNEL);
	if (!v)
		return -ENOMEM;
	v->dev = dev;
	v->cqe.done = verbs_done;
	for (i = 0; !ret && i < ARRAY_SIZE(verbs_steps); i++)
		ret = verbs_steps[i](v);
	if (ret && ret != -ENOMEM)
		dev_info(&dev->dev, "%ps: %d\n", verbs_steps[i - 1], ret);
	if (!verbs_destroy(v))
		ret = -EREMOTEIO;
	kfree(v);
	return ret;
}

static int verbs_set(const char *value, const struct kernel_param *param)
{
	int ret = -ENODEV;

	mutex_lock(&verbs_lock);
	if (verbs_device)
		ret = verbs_run(verbs_device);
	mutex_unlock(&verbs_lock);
	return ret;
}

static const struct kernel_param_ops verbs_run_ops = { .set = verbs_set };
module_param_cb(run, &verbs_run_ops, NULL, 0200);
MODULE_PARM_DESC(run, "written to: calls the verbs");

static int verbs_add(struct ib_device *dev)
{
	if (strncmp(dev_name(&dev->dev), "vrnic", 5))
		return -EOPNOTSUPP;
	mutex_lock(&verbs_lock);
	verbs_device = dev;
	mutex_unlock(&verbs_lock);
	return 0;
}

static void verbs_remove(struct ib_device *dev, void *data)
{
	mutex_lock(&verbs_lock);
	verbs_device = NULL;
	mutex_unlock(&verbs_lock);
}

static struct ib_client verbs_client = {
	.name = "vrnic-verbs",
	.add = verbs_add,
	.remove = verbs_remove,
};

static int __init verbs_init(void)
{
	return ib_register_client(&verbs_client);
}

static void __exit verbs_exit(void)
{
	ib_unregister_client(&verbs_client);
}

module_init(verbs_init);
module_exit(verbs_exit);
MODULE_DESCRIPTION("Test: a user of RDMA devices that calls each verb");
MODULE_LICENSE("Dual BSD/GPL");
