// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A kernel user of RDMA devices. It posts receives for which no message
 * arrives. When the device is removed, it drains its queue pair, as storage
 * protocols do, and reports how many receives were flushed.
 */

#include <linux/module.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#define RECEIVES 16

struct drain {
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_qp *qp;
	struct ib_cqe cqe;
	atomic_t flushed;
	atomic_t other;
};

static void drain_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct drain *d = container_of(wc->wr_cqe, struct drain, cqe);

	if (wc->status == IB_WC_WR_FLUSH_ERR && wc->qp == d->qp)
		atomic_inc(&d->flushed);
	else
		atomic_inc(&d->other);
}

static int drain_post(struct drain *d)
{
	struct ib_recv_wr wr = { .wr_cqe = &d->cqe };
	int i, ret;

	for (i = 0; i < RECEIVES; i++) {
		ret = ib_post_recv(d->qp, &wr, NULL);
		if (ret)
			return ret;
	}
	return 0;
}

static int drain_add(struct ib_device *dev);
static void drain_remove(struct ib_device *dev, void *data);

static struct ib_client drain_client = {
	.name = "vrnic-drain",
	.add = drain_add,
	.remove = drain_remove,
};

static int drain_add(struct ib_device *dev)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_INIT, .port_num = 1 };
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = 2,
			.max_recv_wr = RECEIVES + 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
	};
	struct drain *d;
	int ret;

	if (strncmp(dev_name(&dev->dev), "vrnic", 5))
		return -EOPNOTSUPP;
	d = kzalloc(sizeof(*d), GFP_KERNEL);
	if (!d)
		return -ENOMEM;
	d->cqe.done = drain_done;

	d->pd = ib_alloc_pd(dev, 0);
	if (IS_ERR(d->pd)) {
		ret = PTR_ERR(d->pd);
		goto free;
	}
	d->cq = ib_alloc_cq_any(dev, d, RECEIVES + 4, IB_POLL_SOFTIRQ);
	if (IS_ERR(d->cq)) {
		ret = PTR_ERR(d->cq);
		goto dealloc_pd;
	}
	init.send_cq = d->cq;
	init.recv_cq = d->cq;
	d->qp = ib_create_qp(d->pd, &init);
	if (IS_ERR(d->qp)) {
		ret = PTR_ERR(d->qp);
		goto free_cq;
	}
	ret = ib_modify_qp(d->qp, &attr,
			   IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
			   IB_QP_ACCESS_FLAGS);
	if (!ret)
		ret = drain_post(d);
	if (ret)
		goto destroy_qp;
	ib_set_client_data(dev, &drain_client, d);
	return 0;

destroy_qp:
	ib_destroy_qp(d->qp);
free_cq:
	ib_free_cq(d->cq);
dealloc_pd:
	ib_dealloc_pd(d->pd);
free:
	kfree(d);
	return ret;
}

static void drain_remove(struct ib_device *dev, void *data)
{
	struct drain *d = data;
	int before = atomic_read(&d->flushed);

	ib_drain_qp(d->qp);
	dev_info(&dev->dev, "drained: %d receives flushed, %d of them before, %d others\n",
		 atomic_read(&d->flushed), before, atomic_read(&d->other));
	ib_destroy_qp(d->qp);
	ib_free_cq(d->cq);
	ib_dealloc_pd(d->pd);
	kfree(d);
}

static int __init drain_init(void)
{
	return ib_register_client(&drain_client);
}

static void __exit drain_exit(void)
{
	ib_unregister_client(&drain_client);
}

module_init(drain_init);
module_exit(drain_exit);
MODULE_DESCRIPTION("Test: a user of RDMA devices that drains its queue pair");
MODULE_LICENSE("Dual BSD/GPL");
