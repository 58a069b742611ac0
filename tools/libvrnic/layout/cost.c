// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * What posting and polling cost a program: each function cost_… is a call as programs make it, and `layout/check.sh
 * --cost` has callgrind count the instructions of each. libibverbs, the kernel and the device are those of exercise.c.
 * exercise() prints how many requests or completions each function was called for.
 */
#define exercise exercise_everything
#include "exercise.c"
#undef exercise

#define ROUNDS 200
#define BATCH 8
/* Not merged with others that are alike. */
#define COST __attribute__((noipa)) static void

static struct ibv_sge element = { .addr = 0x1000, .length = 32, .lkey = 5 };
static struct ibv_send_wr writes[BATCH], one_write, inline_write, quiet_write, *bad_send;
static struct ibv_recv_wr receives[BATCH], one_receive, *bad_receive;
static struct ibv_wc wc[BATCH];
static uint8_t payload[32];
/* Index of the next request to complete. */
static uint32_t next_send, next_receive;

struct ends {
	struct ibv_cq_ex *cq_ex;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qp_ex;
};

COST cost_post_send(struct ends *e) { CHECK(!ibv_post_send(e->qp, &one_write, &bad_send)); }
COST cost_post_send_without_lock(struct ends *e) { CHECK(!ibv_post_send(e->qp, &one_write, &bad_send)); }
COST cost_post_send_to_a_sleeping_device(struct ends *e) { CHECK(!ibv_post_send(e->qp, &one_write, &bad_send)); }
COST cost_post_send_unsignaled(struct ends *e) { CHECK(!ibv_post_send(e->qp, &quiet_write, &bad_send)); }
COST cost_post_send_inline(struct ends *e) { CHECK(!ibv_post_send(e->qp, &inline_write, &bad_send)); }
COST cost_post_send_list(struct ends *e) { CHECK(!ibv_post_send(e->qp, writes, &bad_send)); }
COST cost_post_recv(struct ends *e) { CHECK(!ibv_post_recv(e->qp, &one_receive, &bad_receive)); }
COST cost_post_recv_list(struct ends *e) { CHECK(!ibv_post_recv(e->qp, receives, &bad_receive)); }
COST cost_poll(struct ends *e) { CHECK(ibv_poll_cq(e->cq, 1, wc) == 1); }
COST cost_poll_without_lock(struct ends *e) { CHECK(ibv_poll_cq(e->cq, 1, wc) == 1); }
COST cost_poll_many(struct ends *e) { CHECK(ibv_poll_cq(e->cq, BATCH, wc) == BATCH); }
COST cost_poll_nothing(struct ends *e) { CHECK(!ibv_poll_cq(e->cq, 1, wc)); }

static inline void build(struct ibv_qp_ex *qp)
{
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, 7, 0x2000);
	ibv_wr_set_sge(qp, element.lkey, element.addr, element.length);
}

COST cost_wr(struct ends *e)
{
	ibv_wr_start(e->qp_ex);
	build(e->qp_ex);
	CHECK(!ibv_wr_complete(e->qp_ex));
}

COST cost_wr_without_lock(struct ends *e)
{
	ibv_wr_start(e->qp_ex);
	build(e->qp_ex);
	CHECK(!ibv_wr_complete(e->qp_ex));
}

COST cost_wr_many(struct ends *e)
{
	ibv_wr_start(e->qp_ex);
	for (int i = 0; i < BATCH; i++)
		build(e->qp_ex);
	CHECK(!ibv_wr_complete(e->qp_ex));
}

/* As a program reads the name, the status and the kind of each completion. */
static inline void look(struct ibv_cq_ex *cq)
{
	CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id < 2 * BATCH && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
}

COST cost_start_poll_many(struct ends *e)
{
	struct ibv_poll_cq_attr attr = {};

	CHECK(!ibv_start_poll(e->cq_ex, &attr));
	look(e->cq_ex);
	for (int i = 1; i < BATCH; i++) {
		CHECK(!ibv_next_poll(e->cq_ex));
		look(e->cq_ex);
	}
	ibv_end_poll(e->cq_ex);
}

/* Returns a queue pair and its completion queue, with or without locks. */
static struct ends open_ends(struct ibv_context *context, struct ibv_pd *pd, int without_lock)
{
	struct ibv_cq_init_attr_ex cq = {
		.cqe = BATCH,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
		.comp_mask = without_lock ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0,
		.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
	};
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = BATCH, .max_recv_wr = BATCH, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = 32 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
		.pd = pd,
	};
	struct ends e;

	completions = next_send = next_receive = 0;
	e.cq_ex = ops.create_cq_ex(context, &cq);
	CHECK(e.cq_ex);
	e.cq = ibv_cq_ex_to_cq(e.cq_ex);
	attr.send_cq = attr.recv_cq = e.cq;
	e.qp = ops.create_qp_ex(context, &attr);
	CHECK(e.qp);
	e.qp_ex = &((struct verbs_qp *)e.qp)->qp_ex;
	to_rts(e.qp);
	return e;
}

static void close_ends(struct ends *e)
{
	CHECK(!ops.destroy_qp(e->qp) && !ops.destroy_cq(e->cq));
}

static void completed_sends(int count)
{
	while (count--)
		complete(17, send_name(&qp_req, next_send++), IBV_WC_RDMA_WRITE, 0);
	take_bits();
}

/* Posts with one function and polls with another, BATCH requests in each round. */
static void run(struct ends e, void (*post)(struct ends *), int posted, void (*poll)(struct ends *), int polled)
{
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < BATCH; i += posted)
			post(&e);
		if (post == cost_post_recv || post == cost_post_recv_list) {
			for (int i = 0; i < BATCH; i++)
				complete(17, receive_name(&qp_req, next_receive++), IBV_WC_RECV, 0);
		} else if (post == cost_post_send_unsignaled) {
			/* The last request completes, and those before it with it. */
			next_send += BATCH;
			complete(17, send_name(&qp_req, next_send - 1), IBV_WC_RDMA_WRITE, 0);
			take_bits();
		} else {
			completed_sends(BATCH);
		}
		for (int i = 0; i < (post == cost_post_send_unsignaled ? 1 : BATCH); i += polled)
			poll(&e);
	}
	close_ends(&e);
}

static void poll_one(struct ends *e) { cost_poll(e); }
static void poll_many_then_nothing(struct ends *e)
{
	cost_poll_many(e);
	for (int i = 0; i < BATCH; i++)
		cost_poll_nothing(e);
}
static void poll_quietly(struct ends *e) { CHECK(ibv_poll_cq(e->cq, 1, wc) == 1); }
static void poll_all_quietly(struct ends *e) { CHECK(ibv_poll_cq(e->cq, BATCH, wc) == BATCH); }

void exercise(void)
{
	struct verbs_device *device = provider->alloc_device(NULL);
	struct ibv_td_init_attr td_attr = {};
	struct ibv_context *context;
	struct ibv_parent_domain_init_attr attr = {};
	struct ibv_pd *pd, *parent;

	has_doorbells = 1;
	context = open_device();
	pd = ops.alloc_pd(context);
	attr.pd = pd;
	attr.td = ops.alloc_td(context, &td_attr);
	parent = ops.alloc_parent_domain(context, &attr);
	CHECK(device && pd && attr.td && parent);
	for (int i = 0; i < BATCH; i++) {
		writes[i] = (struct ibv_send_wr){ .wr_id = i, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &element,
						  .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
						  .wr.rdma = { .remote_addr = 0x2000, .rkey = 7 },
						  .next = i + 1 < BATCH ? &writes[i + 1] : NULL };
		receives[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = &element, .num_sge = 1,
						    .next = i + 1 < BATCH ? &receives[i + 1] : NULL };
	}
	one_write = writes[BATCH - 1];
	one_receive = receives[BATCH - 1];
	quiet_write = one_write;
	quiet_write.send_flags = 0;
	inline_write = one_write;
	inline_write.send_flags |= IBV_SEND_INLINE;

	/* The device polls: nobody rings. */
	notify[0] = 1;
	run(open_ends(context, pd, 0), cost_post_send, 1, poll_one, 1);
	run(open_ends(context, pd, 0), cost_post_send_unsignaled, 1, poll_quietly, 1);
	run(open_ends(context, pd, 0), cost_post_send_list, BATCH, poll_many_then_nothing, BATCH);
	run(open_ends(context, parent, 1), cost_post_send_without_lock, 1, cost_poll_without_lock, 1);
	element.addr = (uintptr_t)payload;
	run(open_ends(context, pd, 0), cost_post_send_inline, 1, poll_quietly, 1);
	run(open_ends(context, pd, 0), cost_wr, 1, cost_start_poll_many, BATCH);
	run(open_ends(context, parent, 1), cost_wr_without_lock, 1, poll_quietly, 1);
	run(open_ends(context, pd, 0), cost_wr_many, BATCH, poll_all_quietly, BATCH);
	run(open_ends(context, pd, 0), cost_post_recv, 1, poll_quietly, 1);
	run(open_ends(context, pd, 0), cost_post_recv_list, BATCH, poll_all_quietly, BATCH);
	notify[0] = 0;
	run(open_ends(context, pd, 0), cost_post_send_to_a_sleeping_device, 1, poll_quietly, 1);
	printf("%d\n", ROUNDS * BATCH);
	CHECK(!ops.dealloc_pd(parent) && !ops.dealloc_td(attr.td) && !ops.dealloc_pd(pd));
	ops.free_context(context);
	provider->uninit_device(device);
}
