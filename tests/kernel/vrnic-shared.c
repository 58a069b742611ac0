// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A kernel user of RDMA devices. Two queue pairs that share their receives
 * send messages to each other. All must arrive, and the limit event of the
 * shared receive queue must arrive once. Then receives wait until the device
 * is removed, when the queue pairs are drained as storage protocols do.
 */

#include <linux/cache.h>
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "connect.h"

#define QPS 2
#define RECEIVES 8
#define MESSAGES 40
#define LENGTH 64

struct shared;

struct receive {
	struct ib_cqe cqe;
	struct shared *owner;
	u64 dma;
	u8 data[LENGTH] ____cacheline_aligned;
};

static unsigned int patience = 60;
module_param(patience, uint, 0444);
MODULE_PARM_DESC(patience, "seconds to wait for a completion");

struct shared {
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_srq *srq;
	struct ib_qp *qp[QPS];
	struct ib_cqe send_cqe;
	/* Message data: the number of the message in each byte. */
	u64 dma;
	u8 data[LENGTH] ____cacheline_aligned;
	struct receive receives[RECEIVES];
	atomic_t sent;
	atomic_t arrived;
	atomic_t wrong;
	atomic_t limits;
	atomic_t last;
};

static int shared_post(struct receive *r)
{
	struct ib_sge sge = {
		.addr = r->dma,
		.length = LENGTH,
		.lkey = r->owner->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = {
		.wr_cqe = &r->cqe,
		.sg_list = &sge,
		.num_sge = 1,
	};

	return ib_post_srq_recv(r->owner->srq, &wr, NULL);
}

static void shared_received(struct ib_cq *cq, struct ib_wc *wc)
{
	struct receive *r = container_of(wc->wr_cqe, struct receive, cqe);
	struct shared *s = r->owner;
	bool right = wc->status == IB_WC_SUCCESS && wc->byte_len == LENGTH;
	int i;

	right &= wc->qp == s->qp[0] || wc->qp == s->qp[1];
	if (right) {
		ib_dma_sync_single_for_cpu(s->pd->device, r->dma, LENGTH, DMA_FROM_DEVICE);
		/* Only one message is in flight at a time. */
		for (i = 0; i < LENGTH; i++)
			right &= r->data[i] == s->data[0];
		ib_dma_sync_single_for_device(s->pd->device, r->dma, LENGTH, DMA_FROM_DEVICE);
	}
	if (shared_post(r))
		right = false;
	atomic_inc(right ? &s->arrived : &s->wrong);
}

static void shared_sent(struct ib_cq *cq, struct ib_wc *wc)
{
	struct shared *s = container_of(wc->wr_cqe, struct shared, send_cqe);

	atomic_inc(wc->status == IB_WC_SUCCESS ? &s->sent : &s->wrong);
}

static void shared_srq_event(struct ib_event *event, void *context)
{
	struct shared *s = context;

	atomic_inc(event->event == IB_EVENT_SRQ_LIMIT_REACHED ? &s->limits : &s->wrong);
}

static void shared_qp_event(struct ib_event *event, void *context)
{
	struct shared *s = context;

	if (event->event == IB_EVENT_QP_LAST_WQE_REACHED)
		atomic_inc(&s->last);
}

/* Waits until count events have arrived. A work item delivers them. */
static int shared_wait(atomic_t *events, int count)
{
	unsigned long end = jiffies + patience * HZ;

	while (atomic_read(events) < count) {
		if (time_after(jiffies, end))
			return -ETIMEDOUT;
		usleep_range(50, 100);
	}
	return 0;
}

/* Sends message n and waits until it has arrived. */
static int shared_send(struct shared *s, int n)
{
	struct ib_sge sge = {
		.addr = s->dma,
		.length = LENGTH,
		.lkey = s->pd->local_dma_lkey,
	};
	struct ib_send_wr wr = {
		.wr_cqe = &s->send_cqe,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
	};
	unsigned long end = jiffies + patience * HZ;
	int ret;

	ib_dma_sync_single_for_cpu(s->pd->device, s->dma, LENGTH, DMA_TO_DEVICE);
	memset(s->data, n, LENGTH);
	ib_dma_sync_single_for_device(s->pd->device, s->dma, LENGTH, DMA_TO_DEVICE);
	/* The queue pairs do not simply alternate. */
	ret = ib_post_send(s->qp[n % 3 % QPS], &wr, NULL);
	while (!ret && atomic_read(&s->sent) + atomic_read(&s->arrived) < 2 * (n + 1)) {
		if (atomic_read(&s->wrong) || time_after(jiffies, end))
			ret = -EIO;
		usleep_range(50, 100);
	}
	return ret;
}

static int shared_run(struct shared *s)
{
	struct ib_srq_attr attr = { .srq_limit = RECEIVES };
	int i, ret;

	for (i = 0; i < RECEIVES; i++) {
		ret = shared_post(&s->receives[i]);
		if (ret)
			return ret;
	}
	/* The queue is full now. */
	if (shared_post(&s->receives[0]) != -ENOMEM)
		return -EINVAL;
	for (i = 0; i < QPS; i++) {
		ret = connect_qp(s->qp[i], s->qp[1 - i]->qp_num, 0);
		if (ret)
			return ret;
	}
	ret = ib_modify_srq(s->srq, &attr, IB_SRQ_LIMIT);
	for (i = 0; !ret && i < MESSAGES; i++)
		ret = shared_send(s, i);
	return ret ?: shared_wait(&s->limits, 1);
}

static void shared_free(struct shared *s, struct ib_device *dev)
{
	int i;

	for (i = 0; i < QPS; i++)
		if (s->qp[i])
			ib_destroy_qp(s->qp[i]);
	if (!IS_ERR_OR_NULL(s->cq))
		ib_free_cq(s->cq);
	/* Destroyed after the CQ, because completion handlers post to it. */
	if (!IS_ERR_OR_NULL(s->srq))
		ib_destroy_srq(s->srq);
	if (!IS_ERR_OR_NULL(s->pd))
		ib_dealloc_pd(s->pd);
	for (i = 0; i < RECEIVES; i++)
		if (s->receives[i].dma)
			ib_dma_unmap_single(dev, s->receives[i].dma, LENGTH, DMA_FROM_DEVICE);
	if (s->dma)
		ib_dma_unmap_single(dev, s->dma, LENGTH, DMA_TO_DEVICE);
	kfree(s);
}

static int shared_map(struct shared *s, struct ib_device *dev)
{
	struct receive *r;
	u64 dma;
	int i;

	for (i = 0; i < RECEIVES; i++) {
		r = &s->receives[i];
		r->owner = s;
		r->cqe.done = shared_received;
		dma = ib_dma_map_single(dev, r->data, LENGTH, DMA_FROM_DEVICE);
		if (ib_dma_mapping_error(dev, dma))
			return -ENOMEM;
		r->dma = dma;
	}
	dma = ib_dma_map_single(dev, s->data, LENGTH, DMA_TO_DEVICE);
	if (ib_dma_mapping_error(dev, dma))
		return -ENOMEM;
	s->dma = dma;
	s->send_cqe.done = shared_sent;
	return 0;
}

static int shared_add(struct ib_device *dev);
static void shared_remove(struct ib_device *dev, void *data);

static struct ib_client shared_client = {
	.name = "vrnic-shared",
	.add = shared_add,
	.remove = shared_remove,
};

static int shared_add(struct ib_device *dev)
{
	struct ib_srq_init_attr srq_attr = {
		.srq_type = IB_SRQT_BASIC,
		.event_handler = shared_srq_event,
		.attr = { .max_wr = RECEIVES, .max_sge = 1 },
	};
	struct ib_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.event_handler = shared_qp_event,
	};
	struct shared *s;
	struct ib_qp *qp;
	int i, ret;

	if (strncmp(dev_name(&dev->dev), "vrnic", 5))
		return -EOPNOTSUPP;
	s = kzalloc(sizeof(*s), GFP_KERNEL);
	if (!s)
		return -ENOMEM;
	ret = shared_map(s, dev);
	if (ret)
		goto free;
	s->pd = ib_alloc_pd(dev, 0);
	ret = PTR_ERR_OR_ZERO(s->pd);
	if (ret)
		goto free;
	s->cq = ib_alloc_cq_any(dev, s, 2 * RECEIVES, IB_POLL_SOFTIRQ);
	ret = PTR_ERR_OR_ZERO(s->cq);
	if (ret)
		goto free;
	srq_attr.srq_context = s;
	s->srq = ib_create_srq(s->pd, &srq_attr);
	ret = PTR_ERR_OR_ZERO(s->srq);
	if (ret)
		goto free;
	init.send_cq = s->cq;
	init.recv_cq = s->cq;
	init.srq = s->srq;
	init.qp_context = s;
	for (i = 0; i < QPS; i++) {
		qp = ib_create_qp(s->pd, &init);
		ret = PTR_ERR_OR_ZERO(qp);
		if (ret)
			goto free;
		s->qp[i] = qp;
	}
	ret = shared_run(s);
	dev_info(&dev->dev, "shared: %d arrived, %d sent, %d wrong, limit told %d times: %d\n",
		 atomic_read(&s->arrived), atomic_read(&s->sent),
		 atomic_read(&s->wrong), atomic_read(&s->limits), ret);
	if (ret)
		goto free;
	ib_set_client_data(dev, &shared_client, s);
	return 0;

free:
	shared_free(s, dev);
	return ret;
}

static void shared_remove(struct ib_device *dev, void *data)
{
	struct shared *s = data;
	int i;

	for (i = 0; i < QPS; i++)
		ib_drain_qp(s->qp[i]);
	/* ib_drain_qp() may return before the event handler is called. */
	shared_wait(&s->last, QPS);
	dev_info(&dev->dev, "shared: drained, %d of %d told of the last receive, %d wrong\n",
		 atomic_read(&s->last), QPS, atomic_read(&s->wrong));
	shared_free(s, dev);
}

static int __init shared_init(void)
{
	return ib_register_client(&shared_client);
}

static void __exit shared_exit(void)
{
	ib_unregister_client(&shared_client);
}

module_init(shared_init);
module_exit(shared_exit);
MODULE_DESCRIPTION("Test: a user of RDMA devices whose queue pairs share their receives");
MODULE_LICENSE("Dual BSD/GPL");
