// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A kernel user of RDMA devices. One end of a connection registers memory by
 * work requests, and the other end writes and reads it until either of them
 * invalidates the key. Then come the accesses that must fail, each on a new
 * connection, because a connection cannot be used after an error. At last, the
 * peer writes data that is copied when it is posted.
 */

#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "connect.h"

/* The registered memory: parts of three pages. It begins and ends within a page. */
#define PIECES 3
#define OFFSET 520
#define LAST 1000
#define LENGTH (PAGE_SIZE - OFFSET + PAGE_SIZE + LAST)

/* Inline data that is asked for. It is less than the registered memory. */
#define INLINE 100

/* The end that registers memory, and the one that accesses it. */
#define OWNER 0
#define PEER 1

#define REMOTE_ACCESS (IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ)
#define ALL_ACCESS (IB_ACCESS_LOCAL_WRITE | REMOTE_ACCESS)
#define ZERO_BASED (ALL_ACCESS | IB_ZERO_BASED)

static unsigned int patience = 60;
module_param(patience, uint, 0444);
MODULE_PARM_DESC(patience, "seconds to wait for a completion");

struct fast {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_pd *other_pd;
	/* For the sends and receives of the current connection. */
	struct ib_cq *sends;
	struct ib_cq *receives;
	struct ib_qp *qp[2];
	/* Bytes of inline data that the connection can have. */
	u32 max_inline;
	/* A completion did not arrive, so there is no point in waiting for others. */
	bool gave_up;
	struct ib_mr *mr;
	struct ib_mr *other_mr;
	/* Pages of the registered memory, in no particular order. */
	void *page[PIECES];
	struct scatterlist sg[PIECES];
	/* Memory of the peer, as long as the registered memory. */
	u8 *data;
	u64 dma;
	u64 wr_id;
	int right;
	int wrong;
};

/* Records the result of a step: the status of a completion, or an error. */
static void fast_expect(struct fast *f, const char *step, int found, int expected)
{
	if (found == expected) {
		f->right++;
		return;
	}
	f->wrong++;
	dev_info(&f->dev->dev, "fast, wrong: %s: %d, not %d\n", step, found, expected);
}

/* Returns the address of byte i of the registered memory. */
static u8 *fast_byte(struct fast *f, int i)
{
	i += OFFSET;
	return (u8 *)f->page[i / PAGE_SIZE] + i % PAGE_SIZE;
}

static u8 fast_pattern(int i, u8 seed)
{
	/* No two pages have the same contents. */
	return seed + i + i / 251;
}

static void fast_sync(struct fast *f, bool for_cpu)
{
	if (for_cpu) {
		ib_dma_sync_single_for_cpu(f->dev, f->dma, LENGTH, DMA_BIDIRECTIONAL);
		dma_sync_sg_for_cpu(f->dev->dma_device, f->sg, PIECES, DMA_BIDIRECTIONAL);
	} else {
		ib_dma_sync_single_for_device(f->dev, f->dma, LENGTH, DMA_BIDIRECTIONAL);
		dma_sync_sg_for_device(f->dev->dma_device, f->sg, PIECES,
				       DMA_BIDIRECTIONAL);
	}
}

/* Fills the registered memory with one pattern, and the peer's with another. */
static void fast_fill(struct fast *f, u8 registered, u8 peers)
{
	int i;

	fast_sync(f, true);
	for (i = 0; i < PIECES; i++)
		memset(f->page[i], 0xee, PAGE_SIZE);
	for (i = 0; i < LENGTH; i++) {
		*fast_byte(f, i) = fast_pattern(i, registered);
		f->data[i] = fast_pattern(i, peers);
	}
	fast_sync(f, false);
}

/* Returns how many bytes differ from these patterns, or changed next to the registered memory. */
static int fast_differences(struct fast *f, u8 registered, u8 peers)
{
	int i, differences = 0;

	fast_sync(f, true);
	for (i = 0; i < LENGTH; i++) {
		differences += *fast_byte(f, i) != fast_pattern(i, registered);
		differences += f->data[i] != fast_pattern(i, peers);
	}
	for (i = -OFFSET; i < 0; i++)
		differences += *fast_byte(f, i) != 0xee;
	for (i = LENGTH; i < PIECES * (int)PAGE_SIZE - OFFSET; i++)
		differences += *fast_byte(f, i) != 0xee;
	fast_sync(f, false);
	return differences;
}

/* Waits for the completion of the request wr_id. */
static int fast_wait(struct ib_cq *cq, u64 wr_id, struct ib_wc *wc)
{
	unsigned long end = jiffies + patience * HZ;
	int ret;

	for (;;) {
		ret = ib_poll_cq(cq, 1, wc);
		if (ret < 0)
			return ret;
		/* Others belong to connections that failed. */
		if (ret && wc->wr_id == wr_id)
			return 0;
		if (time_after(jiffies, end))
			return -ETIMEDOUT;
		if (!ret)
			usleep_range(50, 100);
	}
}

/* Posts a request at one end. Returns its completion's status (IB_WC_*) or a negative error. */
static int fast_do(struct fast *f, int which, struct ib_send_wr *wr, enum ib_wc_opcode opcode)
{
	struct ib_wc wc;
	int ret;

	if (f->gave_up || !f->qp[which])
		return -ENOTCONN;
	wr->wr_id = ++f->wr_id;
	wr->send_flags |= IB_SEND_SIGNALED;
	ret = ib_post_send(f->qp[which], wr, NULL);
	if (!ret)
		ret = fast_wait(f->sends, wr->wr_id, &wc);
	f->gave_up |= ret == -ETIMEDOUT;
	if (ret)
		return ret;
	if (wc.qp != f->qp[which] || (!wc.status && wc.opcode != opcode))
		return -EBADMSG;
	return wc.status;
}

/* Ends the connection, if any, and makes another one in a protection domain. */
static int fast_reconnect(struct fast *f, struct ib_pd *pd)
{
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = 4,
			.max_recv_wr = 4,
			.max_send_sge = 2,
			.max_recv_sge = 1,
			.max_inline_data = INLINE,
		},
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.send_cq = f->sends,
		.recv_cq = f->receives,
	};
	struct ib_qp *qp;
	int i, ret;

	for (i = 0; i < 2; i++) {
		if (f->qp[i])
			ib_destroy_qp(f->qp[i]);
		f->qp[i] = NULL;
	}
	if (!pd)
		return 0;
	for (i = 0; i < 2; i++) {
		qp = ib_create_qp(pd, &init);
		if (IS_ERR(qp))
			return PTR_ERR(qp);
		f->qp[i] = qp;
		f->max_inline = init.cap.max_inline_data;
	}
	for (i = 0; i < 2; i++) {
		ret = connect_qp(f->qp[i], f->qp[1 - i]->qp_num, REMOTE_ACCESS);
		if (ret)
			return ret;
	}
	return 0;
}

/* Makes the owner register the memory, with a new key. */
static int fast_register(struct fast *f, struct ib_mr *mr, int access)
{
	struct ib_reg_wr wr = { .wr.opcode = IB_WR_REG_MR, .mr = mr, .access = access };
	unsigned int offset = 0;
	int ret;

	ib_update_fast_reg_key(mr, ib_inc_rkey(mr->rkey));
	wr.key = mr->rkey;
	ret = ib_map_mr_sg(mr, f->sg, PIECES, &offset, PAGE_SIZE);
	if (ret != PIECES || mr->length != LENGTH)
		return -EINVAL;
	return fast_do(f, OWNER, &wr.wr, IB_WC_REG_MR);
}

static int fast_invalidate(struct fast *f, u32 key)
{
	struct ib_send_wr wr = { .opcode = IB_WR_LOCAL_INV, .ex.invalidate_rkey = key };

	return fast_do(f, OWNER, &wr, IB_WC_LOCAL_INV);
}

/* Makes the peer access length bytes at offset of the registered memory, which begins at base. */
static int fast_access_at(struct fast *f, enum ib_wr_opcode opcode, u32 key, u64 base, u64 offset,
			  u32 length)
{
	struct ib_sge sge = {
		.addr = f->dma + offset,
		.length = length,
	};
	struct ib_rdma_wr wr = {
		.wr = {
			.opcode = opcode,
			.sg_list = &sge,
			.num_sge = 1,
		},
		.remote_addr = base + offset,
		.rkey = key,
	};

	if (!f->qp[PEER])
		return -ENOTCONN;
	sge.lkey = f->qp[PEER]->pd->local_dma_lkey;
	return fast_do(f, PEER, &wr.wr,
		       opcode == IB_WR_RDMA_READ ? IB_WC_RDMA_READ : IB_WC_RDMA_WRITE);
}

static int fast_access(struct fast *f, enum ib_wr_opcode opcode, u32 key, u64 offset, u32 length)
{
	return fast_access_at(f, opcode, key, sg_dma_address(f->sg), offset, length);
}

static int fast_write(struct fast *f, u32 key)
{
	return fast_access(f, IB_WR_RDMA_WRITE, key, 0, LENGTH);
}

static int fast_read(struct fast *f, u32 key)
{
	return fast_access(f, IB_WR_RDMA_READ, key, 0, LENGTH);
}

/*
 * Sends a message that invalidates a key of the owner. Stores the status of
 * the receive in received, and returns that of the send.
 */
static int fast_send_invalidate(struct fast *f, u32 key, int *received)
{
	struct ib_send_wr wr = { .opcode = IB_WR_SEND_WITH_INV, .ex.invalidate_rkey = key };
	struct ib_recv_wr recv = { .wr_id = ++f->wr_id };
	struct ib_wc wc;
	int ret, sent;

	if (f->gave_up || !f->qp[OWNER])
		return -ENOTCONN;
	ret = ib_post_recv(f->qp[OWNER], &recv, NULL);
	if (ret)
		return ret;
	sent = fast_do(f, PEER, &wr, IB_WC_SEND);
	ret = fast_wait(f->receives, recv.wr_id, &wc);
	f->gave_up |= ret == -ETIMEDOUT;
	if (ret)
		return ret;
	*received = wc.status;
	if (!wc.status && (!(wc.wc_flags & IB_WC_WITH_INVALIDATE) ||
			   wc.ex.invalidate_rkey != key))
		*received = -EBADMSG;
	return sent;
}

/* The memory can be accessed until either end invalidates the key. */
static void fast_good(struct fast *f)
{
	struct ib_mr *mr = f->mr;
	int received = -EINVAL;
	u32 old;

	fast_fill(f, 1, 2);
	fast_expect(f, "register", fast_register(f, mr, ALL_ACCESS), IB_WC_SUCCESS);
	fast_expect(f, "write", fast_write(f, mr->rkey), IB_WC_SUCCESS);
	fast_expect(f, "written", fast_differences(f, 2, 2), 0);
	fast_fill(f, 3, 4);
	fast_expect(f, "read", fast_read(f, mr->rkey), IB_WC_SUCCESS);
	fast_expect(f, "what was read", fast_differences(f, 3, 3), 0);
	fast_expect(f, "send with invalidate", fast_send_invalidate(f, mr->rkey, &received),
		    IB_WC_SUCCESS);
	fast_expect(f, "receive with invalidate", received, IB_WC_SUCCESS);

	/* The region is free: it can be registered again, and the old key is no longer valid. */
	fast_fill(f, 5, 6);
	old = mr->rkey;
	fast_expect(f, "register again", fast_register(f, mr, ALL_ACCESS), IB_WC_SUCCESS);
	fast_expect(f, "another key", mr->rkey != old, true);
	fast_expect(f, "write again", fast_write(f, mr->rkey), IB_WC_SUCCESS);
	fast_expect(f, "written again", fast_differences(f, 6, 6), 0);
	fast_fill(f, 7, 8);
	fast_expect(f, "write by the old key", fast_write(f, old), IB_WC_REM_ACCESS_ERR);
	fast_expect(f, "nothing written", fast_differences(f, 7, 8), 0);

	/* The failed access did not end the registration. */
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "read once more", fast_read(f, mr->rkey), IB_WC_SUCCESS);
	fast_expect(f, "what was read then", fast_differences(f, 7, 7), 0);
	fast_expect(f, "invalidate", fast_invalidate(f, mr->rkey), IB_WC_SUCCESS);
	fast_fill(f, 9, 10);
	fast_expect(f, "read after that", fast_read(f, mr->rkey), IB_WC_REM_ACCESS_ERR);
	fast_expect(f, "nothing read", fast_differences(f, 9, 10), 0);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
}

/* A key that a message invalidated, or that cannot be invalidated because it does not exist. */
static void fast_stale(struct fast *f)
{
	struct ib_mr *mr = f->mr;
	int received = -EINVAL;

	fast_fill(f, 11, 12);
	fast_expect(f, "register", fast_register(f, mr, ALL_ACCESS), IB_WC_SUCCESS);
	fast_expect(f, "invalidate by message", fast_send_invalidate(f, mr->rkey, &received),
		    IB_WC_SUCCESS);
	fast_expect(f, "write after message", fast_write(f, mr->rkey), IB_WC_REM_ACCESS_ERR);
	fast_expect(f, "nothing written", fast_differences(f, 11, 12), 0);

	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "invalidate a free region", fast_invalidate(f, mr->rkey),
		    IB_WC_MW_BIND_ERR);

	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "invalidate a free region by message",
		    fast_send_invalidate(f, mr->rkey, &received), IB_WC_SUCCESS);
	fast_expect(f, "receive of that", received, IB_WC_REM_INV_REQ_ERR);

	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "register", fast_register(f, mr, ALL_ACCESS), IB_WC_SUCCESS);
	fast_expect(f, "invalidate another key", fast_invalidate(f, ib_inc_rkey(mr->rkey)),
		    IB_WC_MW_BIND_ERR);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "write nevertheless", fast_write(f, mr->rkey), IB_WC_SUCCESS);
	fast_expect(f, "written", fast_differences(f, 12, 12), 0);
	fast_expect(f, "invalidate", fast_invalidate(f, mr->rkey), IB_WC_SUCCESS);
}

/* A valid region cannot be registered, nor can one of another protection domain. */
static void fast_twice(struct fast *f)
{
	struct ib_mr *mr = f->mr;
	u32 old;

	fast_fill(f, 13, 14);
	fast_expect(f, "register", fast_register(f, mr, ALL_ACCESS), IB_WC_SUCCESS);
	old = mr->rkey;
	fast_expect(f, "register a valid region", fast_register(f, mr, ALL_ACCESS),
		    IB_WC_MW_BIND_ERR);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "write by its key", fast_write(f, old), IB_WC_SUCCESS);
	fast_expect(f, "written", fast_differences(f, 14, 14), 0);
	fast_expect(f, "invalidate its key", fast_invalidate(f, old), IB_WC_SUCCESS);

	fast_expect(f, "register another domain's", fast_register(f, f->other_mr, ALL_ACCESS),
		    IB_WC_MW_BIND_ERR);

	/* It can be used in its own protection domain, but not in this one. */
	fast_fill(f, 15, 16);
	fast_expect(f, "reconnect", fast_reconnect(f, f->other_pd), 0);
	fast_expect(f, "register there", fast_register(f, f->other_mr, ALL_ACCESS), IB_WC_SUCCESS);
	fast_expect(f, "write there", fast_write(f, f->other_mr->rkey), IB_WC_SUCCESS);
	fast_expect(f, "written", fast_differences(f, 16, 16), 0);
	fast_fill(f, 17, 18);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "write from here", fast_write(f, f->other_mr->rkey), IB_WC_REM_ACCESS_ERR);
	fast_expect(f, "nothing written", fast_differences(f, 17, 18), 0);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "invalidate from here", fast_invalidate(f, f->other_mr->rkey),
		    IB_WC_MW_BIND_ERR);
	fast_expect(f, "reconnect", fast_reconnect(f, f->other_pd), 0);
	fast_expect(f, "invalidate there", fast_invalidate(f, f->other_mr->rkey), IB_WC_SUCCESS);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
}

/* The peer can do what it has rights to, within the bounds of the memory. */
static void fast_rights(struct fast *f)
{
	struct ib_mr *mr = f->mr;

	fast_fill(f, 19, 20);
	fast_expect(f, "register to be read", fast_register(f, mr, IB_ACCESS_REMOTE_READ),
		    IB_WC_SUCCESS);
	fast_expect(f, "write what may be read", fast_write(f, mr->rkey), IB_WC_REM_ACCESS_ERR);
	fast_expect(f, "nothing written", fast_differences(f, 19, 20), 0);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "read what may be read", fast_read(f, mr->rkey), IB_WC_SUCCESS);
	fast_expect(f, "what was read", fast_differences(f, 19, 19), 0);
	fast_expect(f, "invalidate", fast_invalidate(f, mr->rkey), IB_WC_SUCCESS);

	fast_fill(f, 21, 22);
	fast_expect(f, "register to be written",
		    fast_register(f, mr, IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE),
		    IB_WC_SUCCESS);
	fast_expect(f, "read what may be written", fast_read(f, mr->rkey), IB_WC_REM_ACCESS_ERR);
	fast_expect(f, "nothing read", fast_differences(f, 21, 22), 0);

	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "write beyond the end",
		    fast_access(f, IB_WR_RDMA_WRITE, mr->rkey, 1, LENGTH), IB_WC_REM_ACCESS_ERR);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "nothing written", fast_differences(f, 21, 22), 0);
	fast_expect(f, "write the last byte",
		    fast_access(f, IB_WR_RDMA_WRITE, mr->rkey, LENGTH - 1, 1), IB_WC_SUCCESS);
	fast_expect(f, "one byte written", fast_differences(f, 21, 22), 1);
	fast_expect(f, "invalidate", fast_invalidate(f, mr->rkey), IB_WC_SUCCESS);

	/* Addresses count from 0, and the memory has no others. */
	fast_fill(f, 23, 24);
	fast_expect(f, "register from 0", fast_register(f, mr, ZERO_BASED), IB_WC_SUCCESS);
	fast_expect(f, "write from 0",
		    fast_access_at(f, IB_WR_RDMA_WRITE, mr->rkey, 0, 0, LENGTH), IB_WC_SUCCESS);
	fast_expect(f, "what was written from 0", fast_differences(f, 24, 24), 0);
	fast_expect(f, "write by its DMA address", fast_write(f, mr->rkey),
		    IB_WC_REM_ACCESS_ERR);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	fast_expect(f, "invalidate", fast_invalidate(f, mr->rkey), IB_WC_SUCCESS);

	/* Remote write access requires local write access. */
	fast_expect(f, "register with wrong rights", fast_register(f, mr, REMOTE_ACCESS),
		    IB_WC_MW_BIND_ERR);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
}

/* A key for all memory gives access to unregistered memory by its DMA addresses. */
static void fast_unregistered(struct fast *f)
{
	struct ib_pd *pd = ib_alloc_pd(f->dev, IB_PD_UNSAFE_GLOBAL_RKEY);
	int length = PAGE_SIZE - OFFSET;

	fast_expect(f, "PD with a key for all memory", PTR_ERR_OR_ZERO(pd), 0);
	if (IS_ERR(pd))
		return;
	fast_fill(f, 23, 24);
	fast_expect(f, "reconnect", fast_reconnect(f, pd), 0);
	fast_expect(f, "write what is not registered",
		    fast_access(f, IB_WR_RDMA_WRITE, pd->unsafe_global_rkey, 0, length),
		    IB_WC_SUCCESS);
	fast_expect(f, "written", fast_differences(f, 23, 24), length);
	fast_expect(f, "reconnect", fast_reconnect(f, f->pd), 0);
	ib_dealloc_pd(pd);
}

/* Makes the peer write inline data, which is overwritten as soon as the request is posted. */
static int fast_write_inline(struct fast *f, enum ib_wr_opcode opcode, u8 *data, u32 length)
{
	struct ib_sge sge[] = {
		{ .addr = (uintptr_t)data, .length = length / 3 },
		{ .addr = (uintptr_t)data + length / 3, .length = length - length / 3 },
	};
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_id = ++f->wr_id,
			.opcode = opcode,
			.sg_list = sge,
			.num_sge = ARRAY_SIZE(sge),
			.send_flags = IB_SEND_SIGNALED | IB_SEND_INLINE,
		},
		.remote_addr = sg_dma_address(f->sg),
		.rkey = f->mr->rkey,
	};
	struct ib_wc wc;
	int ret;

	if (f->gave_up || !f->qp[PEER])
		return -ENOTCONN;
	ret = ib_post_send(f->qp[PEER], &wr.wr, NULL);
	memset(data, 0xcc, length);
	if (!ret)
		ret = fast_wait(f->sends, wr.wr.wr_id, &wc);
	f->gave_up |= ret == -ETIMEDOUT;
	return ret ?: wc.status;
}

/* Inline data comes from memory that the device cannot reach, and is copied when it is posted. */
static void fast_inline(struct fast *f)
{
	u32 i, same = 0, most = f->max_inline;
	u8 *data = kmalloc(most + 1, GFP_KERNEL);

	fast_expect(f, "room for inline data", data && most >= INLINE && most < PAGE_SIZE - OFFSET,
		    true);
	if (!data)
		return;
	for (i = 0; i <= most; i++)
		data[i] = fast_pattern(i, 28);
	fast_fill(f, 27, 29);
	fast_expect(f, "register", fast_register(f, f->mr, ALL_ACCESS), IB_WC_SUCCESS);
	fast_expect(f, "write inline data", fast_write_inline(f, IB_WR_RDMA_WRITE, data, most),
		    IB_WC_SUCCESS);
	fast_expect(f, "all of it is written", fast_differences(f, 27, 29), most);
	for (i = 0; i < most; i++)
		same += *fast_byte(f, i) == fast_pattern(i, 28);
	fast_expect(f, "as it was posted", same, most);
	fast_fill(f, 30, 31);
	fast_expect(f, "too much of it", fast_write_inline(f, IB_WR_RDMA_WRITE, data, most + 1),
		    -EINVAL);
	fast_expect(f, "read into it", fast_write_inline(f, IB_WR_RDMA_READ, data, 8), -EINVAL);
	fast_expect(f, "nothing of it", fast_write_inline(f, IB_WR_RDMA_WRITE, data, 0),
		    IB_WC_SUCCESS);
	fast_expect(f, "nothing written", fast_differences(f, 30, 31), 0);
	fast_expect(f, "invalidate", fast_invalidate(f, f->mr->rkey), IB_WC_SUCCESS);
	kfree(data);
}

static void fast_free(struct fast *f)
{
	int i;

	fast_reconnect(f, NULL);
	if (!IS_ERR_OR_NULL(f->mr))
		ib_dereg_mr(f->mr);
	if (!IS_ERR_OR_NULL(f->other_mr))
		ib_dereg_mr(f->other_mr);
	if (!IS_ERR_OR_NULL(f->sends))
		ib_free_cq(f->sends);
	if (!IS_ERR_OR_NULL(f->receives))
		ib_free_cq(f->receives);
	if (!IS_ERR_OR_NULL(f->pd))
		ib_dealloc_pd(f->pd);
	if (!IS_ERR_OR_NULL(f->other_pd))
		ib_dealloc_pd(f->other_pd);
	if (f->dma)
		ib_dma_unmap_single(f->dev, f->dma, LENGTH + 1, DMA_BIDIRECTIONAL);
	if (sg_dma_len(f->sg))
		ib_dma_unmap_sg(f->dev, f->sg, PIECES, DMA_BIDIRECTIONAL);
	kfree(f->data);
	for (i = 0; i < PIECES; i++)
		free_page((unsigned long)f->page[i]);
	kfree(f);
}

static int fast_map(struct fast *f)
{
	int i;

	/* The first page is not the one that was allocated first. */
	for (i = 0; i < PIECES; i++) {
		void *page = (void *)__get_free_page(GFP_KERNEL);

		if (!page)
			return -ENOMEM;
		f->page[(i + 1) % PIECES] = page;
	}
	/* One byte more than is registered, which must not be written. */
	f->data = kzalloc(LENGTH + 1, GFP_KERNEL);
	if (!f->data)
		return -ENOMEM;
	sg_init_table(f->sg, PIECES);
	sg_set_buf(&f->sg[0], (u8 *)f->page[0] + OFFSET, PAGE_SIZE - OFFSET);
	sg_set_buf(&f->sg[1], f->page[1], PAGE_SIZE);
	sg_set_buf(&f->sg[2], f->page[2], LAST);
	if (ib_dma_map_sg(f->dev, f->sg, PIECES, DMA_BIDIRECTIONAL) != PIECES)
		return -ENOMEM;
	f->dma = ib_dma_map_single(f->dev, f->data, LENGTH + 1, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(f->dev, f->dma)) {
		f->dma = 0;
		return -ENOMEM;
	}
	return 0;
}

static int fast_make(struct fast *f)
{
	int ret;

	ret = fast_map(f);
	if (ret)
		return ret;
	f->pd = ib_alloc_pd(f->dev, 0);
	if (IS_ERR(f->pd))
		return PTR_ERR(f->pd);
	f->other_pd = ib_alloc_pd(f->dev, 0);
	if (IS_ERR(f->other_pd))
		return PTR_ERR(f->other_pd);
	f->sends = ib_alloc_cq(f->dev, f, 16, 0, IB_POLL_DIRECT);
	if (IS_ERR(f->sends))
		return PTR_ERR(f->sends);
	f->receives = ib_alloc_cq(f->dev, f, 16, 0, IB_POLL_DIRECT);
	if (IS_ERR(f->receives))
		return PTR_ERR(f->receives);
	f->mr = ib_alloc_mr(f->pd, IB_MR_TYPE_MEM_REG, PIECES);
	if (IS_ERR(f->mr))
		return PTR_ERR(f->mr);
	f->other_mr = ib_alloc_mr(f->other_pd, IB_MR_TYPE_MEM_REG, PIECES);
	if (IS_ERR(f->other_mr))
		return PTR_ERR(f->other_mr);
	return fast_reconnect(f, f->pd);
}

static int fast_add(struct ib_device *dev)
{
	struct fast *f;
	int ret;

	if (strncmp(dev_name(&dev->dev), "vrnic", 5))
		return -EOPNOTSUPP;
	f = kzalloc(sizeof(*f), GFP_KERNEL);
	if (!f)
		return -ENOMEM;
	f->dev = dev;
	ret = fast_make(f);
	if (!ret) {
		fast_good(f);
		fast_stale(f);
		fast_twice(f);
		fast_rights(f);
		fast_unregistered(f);
		fast_inline(f);
	}
	dev_info(&dev->dev, "fast: %d right, %d wrong: %d\n", f->right, f->wrong, ret);
	fast_free(f);
	return ret;
}

static void fast_remove(struct ib_device *dev, void *data)
{
}

static struct ib_client fast_client = {
	.name = "vrnic-fast",
	.add = fast_add,
	.remove = fast_remove,
};

static int __init fast_init(void)
{
	return ib_register_client(&fast_client);
}

static void __exit fast_exit(void)
{
	ib_unregister_client(&fast_client);
}

module_init(fast_init);
module_exit(fast_exit);
MODULE_DESCRIPTION("Test: a user of RDMA devices that registers memory by work requests");
MODULE_LICENSE("Dual BSD/GPL");
