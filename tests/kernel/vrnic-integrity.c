// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A kernel user of memory regions for integrity (T10-PI). One end of a
 * connection has blocks of data, with or without protection information, in
 * a region that adds, removes, checks or changes that information. The other
 * end has what is on the wire. Each end in turn writes and reads, first with
 * information that is right, then with information that is wrong.
 */

#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>
#include <rdma/signature.h>

#include "connect.h"

#define BLOCK 512
#define BLOCKS 4
#define PI 8
#define DATA (BLOCKS * BLOCK)
#define META (BLOCKS * PI)
#define WIRE (DATA + META)

/* The block that is wrong, if one is. */
#define BAD 2

/* The end that has the region, and the one that has the wire. */
#define OWNER 0
#define PEER 1

#define REMOTE_ACCESS (IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ)

/* Pieces of memory: none begins or ends with a page, and few of them with a block. */
#define DATA_PIECES 3
#define META_PIECES 2
static const struct {
	unsigned int offset;
	unsigned int length;
} pieces[] = {
	{ 100, 500 }, { 8, 1000 }, { 1, 548 },
	/* The second piece of metadata begins within the information of a block. */
	{ 4, 12 }, { 100, 20 },
};

#define PIECES ARRAY_SIZE(pieces)

static unsigned int patience = 60;
module_param(patience, uint, 0444);
MODULE_PARM_DESC(patience, "seconds to wait for a completion");

struct integrity {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_qp *qp[2];
	struct ib_mr *mr;
	/* A completion did not arrive, so there is no point in waiting for others. */
	bool gave_up;
	void *page[PIECES];
	/* The pieces of data, and those of metadata. */
	struct scatterlist sg[DATA_PIECES];
	struct scatterlist meta_sg[META_PIECES];
	/* The peer's memory. */
	u8 *wire;
	u64 dma;
	u64 wr_id;
	int right;
	int wrong;
};

/* What one transfer does. The owner or the peer writes or reads. */
struct transfer {
	const char *name;
	struct ib_sig_domain mem;
	struct ib_sig_domain wire;
	int which;
	enum ib_wr_opcode opcode;
};

static void integrity_expect(struct integrity *i, const char *name, const char *step, s64 found,
			     s64 expected)
{
	if (found == expected) {
		i->right++;
		return;
	}
	i->wrong++;
	dev_info(&i->dev->dev, "integrity, wrong: %s: %s: %lld, not %lld\n", name, step, found,
		 expected);
}

/* Computes a guard: slowly, and not by the code of the kernel or of the device. */
static u16 integrity_guard(const struct ib_t10_dif_domain *dif, const u8 *data)
{
	u32 sum = dif->bg;
	int at, bit;

	if (dif->bg_type == IB_T10DIF_CSUM) {
		for (at = 0; at < BLOCK; at += 2)
			sum += data[at] << 8 | data[at + 1];
		while (sum >> 16)
			sum = (sum & 0xffff) + (sum >> 16);
		return ~sum;
	}
	for (at = 0; at < BLOCK; at++) {
		sum ^= data[at] << 8;
		for (bit = 0; bit < 8; bit++)
			sum = sum << 1 ^ (sum & 0x8000 ? 0x18bb7 : 0);
	}
	return sum;
}

/* Writes the information of block n in a domain. */
static void integrity_pi(const struct ib_sig_domain *domain, const u8 *data, int n, u8 *pi)
{
	const struct ib_t10_dif_domain *dif = &domain->sig.dif;

	put_unaligned_be16(integrity_guard(dif, data), pi);
	put_unaligned_be16(dif->app_tag, pi + 2);
	put_unaligned_be32(dif->ref_tag + (dif->ref_remap ? n : 0), pi + 4);
}

/* Copies to or from the pieces of data, or of metadata. */
static void integrity_copy(struct integrity *i, bool is_meta, u8 *buffer, bool to_pieces)
{
	int first = is_meta ? DATA_PIECES : 0, end = is_meta ? PIECES : DATA_PIECES, at;

	for (at = first; at < end; at++) {
		u8 *piece = (u8 *)i->page[at] + pieces[at].offset;

		if (to_pieces)
			memcpy(piece, buffer, pieces[at].length);
		else
			memcpy(buffer, piece, pieces[at].length);
		buffer += pieces[at].length;
	}
}

/* Returns how many bytes next to the pieces have changed. */
static int integrity_damage(struct integrity *i)
{
	int at, byte, damage = 0;

	for (at = 0; at < PIECES; at++) {
		const u8 *page = i->page[at];

		for (byte = 0; byte < PAGE_SIZE; byte++)
			if (byte < pieces[at].offset ||
			    byte >= pieces[at].offset + pieces[at].length)
				damage += page[byte] != 0xee;
	}
	return damage;
}

static void integrity_sync(struct integrity *i, bool for_cpu)
{
	struct device *dma = i->dev->dma_device;

	if (for_cpu) {
		ib_dma_sync_single_for_cpu(i->dev, i->dma, WIRE, DMA_BIDIRECTIONAL);
		dma_sync_sg_for_cpu(dma, i->sg, DATA_PIECES, DMA_BIDIRECTIONAL);
		dma_sync_sg_for_cpu(dma, i->meta_sg, META_PIECES, DMA_BIDIRECTIONAL);
	} else {
		ib_dma_sync_single_for_device(i->dev, i->dma, WIRE, DMA_BIDIRECTIONAL);
		dma_sync_sg_for_device(dma, i->sg, DATA_PIECES, DMA_BIDIRECTIONAL);
		dma_sync_sg_for_device(dma, i->meta_sg, META_PIECES, DMA_BIDIRECTIONAL);
	}
}

/* Posts a request at one end. Returns its completion's status (IB_WC_*) or a negative error. */
static int integrity_do(struct integrity *i, int which, struct ib_send_wr *wr)
{
	unsigned long end = jiffies + patience * HZ;
	struct ib_wc wc;
	int ret;

	if (i->gave_up)
		return -ENOTCONN;
	wr->wr_id = ++i->wr_id;
	wr->send_flags |= IB_SEND_SIGNALED;
	ret = ib_post_send(i->qp[which], wr, NULL);
	while (!ret) {
		ret = ib_poll_cq(i->cq, 1, &wc);
		if (ret > 0)
			return wc.wr_id == wr->wr_id ? (int)wc.status : -EBADMSG;
		if (!ret && time_after(jiffies, end)) {
			i->gave_up = true;
			ret = -ETIMEDOUT;
		}
		if (!ret)
			usleep_range(50, 100);
	}
	return ret;
}

/* Registers the pieces with a new key. Metadata is mapped if the memory has any. */
static int integrity_register(struct integrity *i, const struct transfer *t, u8 checks, int data)
{
	struct ib_reg_wr wr = {
		.wr.opcode = IB_WR_REG_MR_INTEGRITY,
		.mr = i->mr,
		.access = IB_ACCESS_LOCAL_WRITE | REMOTE_ACCESS,
	};
	bool has_meta = t->mem.sig_type != IB_SIG_TYPE_NONE;
	int ret;

	ret = ib_map_mr_sg_pi(i->mr, i->sg, data, NULL, has_meta ? i->meta_sg : NULL,
			      has_meta ? META_PIECES : 0, NULL, PAGE_SIZE);
	if (ret)
		return ret;
	i->mr->sig_attrs->check_mask = checks;
	i->mr->sig_attrs->mem = t->mem;
	i->mr->sig_attrs->wire = t->wire;
	ib_update_fast_reg_key(i->mr, ib_inc_rkey(i->mr->rkey));
	wr.key = i->mr->rkey;
	return integrity_do(i, OWNER, &wr.wr);
}

static int integrity_invalidate(struct integrity *i)
{
	struct ib_send_wr wr = { .opcode = IB_WR_LOCAL_INV, .ex.invalidate_rkey = i->mr->rkey };

	return integrity_do(i, OWNER, &wr);
}

/* Moves all bytes of the wire: between the region and the memory of the peer, by either end. */
static int integrity_move(struct integrity *i, const struct transfer *t, u32 length)
{
	struct ib_sge sge = { .length = length };
	struct ib_rdma_wr wr = {
		.wr = {
			.opcode = t->opcode,
			.sg_list = &sge,
			.num_sge = 1,
		},
	};

	if (t->which == OWNER) {
		sge.addr = i->mr->iova;
		sge.lkey = i->mr->lkey;
		wr.remote_addr = i->dma;
		wr.rkey = i->pd->unsafe_global_rkey;
	} else {
		sge.addr = i->dma;
		sge.lkey = i->pd->local_dma_lkey;
		wr.remote_addr = i->mr->iova;
		wr.rkey = i->mr->rkey;
	}
	return integrity_do(i, t->which, &wr.wr);
}

/*
 * Performs a transfer, in which the bits of damage are wrong in the information
 * of the bad block, and checks what arrives. The error that the region then has
 * must be error (enum ib_sig_err_type), or none if that is negative.
 */
static void integrity_try(struct integrity *i, const struct transfer *t, u8 checks, u64 damage,
			  int error)
{
	bool has_meta = t->mem.sig_type != IB_SIG_TYPE_NONE;
	bool has_wire = t->wire.sig_type != IB_SIG_TYPE_NONE;
	bool from_memory = (t->which == OWNER) == (t->opcode == IB_WR_RDMA_WRITE);
	u32 stride = BLOCK + (has_wire ? PI : 0), length = BLOCKS * stride;
	u8 *data = kzalloc(DATA + META + WIRE, GFP_KERNEL);
	u8 *meta = data + DATA, *wire = data + DATA + META;
	struct ib_mr_status status = {};
	u8 *found = kzalloc(WIRE, GFP_KERNEL);
	u64 expected, actual;
	int n, at, ret;

	if (!data || !found)
		goto free;

	/* What there is before, and what is expected afterwards. */
	for (at = 0; at < DATA; at++)
		data[at] = i->wr_id + at + at / 251;
	for (n = 0; n < BLOCKS; n++) {
		memcpy(wire + n * stride, data + n * BLOCK, BLOCK);
		if (has_meta)
			integrity_pi(&t->mem, data + n * BLOCK, n, meta + n * PI);
		if (has_wire)
			integrity_pi(&t->wire, data + n * BLOCK, n, wire + n * stride + BLOCK);
	}
	{
		u8 *pi = from_memory ? meta + BAD * PI : wire + BAD * stride + BLOCK;

		expected = has_meta || has_wire ? get_unaligned_be64(pi) : 0;
		actual = expected ^ damage;
		if (damage)
			put_unaligned_be64(actual, pi);
	}
	integrity_sync(i, true);
	for (at = 0; at < PIECES; at++)
		memset(i->page[at], 0xee, PAGE_SIZE);
	memset(i->wire, 0xdd, WIRE);
	if (from_memory) {
		integrity_copy(i, false, data, true);
		if (has_meta)
			integrity_copy(i, true, meta, true);
	} else {
		memcpy(i->wire, wire, length);
	}
	integrity_sync(i, false);

	ret = integrity_register(i, t, checks, DATA_PIECES);
	integrity_expect(i, t->name, "register", ret, IB_WC_SUCCESS);
	integrity_expect(i, t->name, "move", integrity_move(i, t, length), IB_WC_SUCCESS);

	/* The data arrives in any case; so does information that is right. */
	integrity_sync(i, true);
	integrity_expect(i, t->name, "damage", integrity_damage(i), 0);
	if (from_memory) {
		for (n = 0; n < BLOCKS; n++) {
			int bytes = damage && n == BAD ? BLOCK : stride;

			if (memcmp(i->wire + n * stride, wire + n * stride, bytes))
				integrity_expect(i, t->name, "block on the wire", n, -1);
		}
		integrity_expect(i, t->name, "after the wire",
				 length == WIRE || i->wire[length] == 0xdd, true);
	} else {
		integrity_copy(i, false, found, false);
		integrity_expect(i, t->name, "data", memcmp(found, data, DATA), 0);
		integrity_copy(i, true, found, false);
		for (n = 0; n < BLOCKS && has_meta; n++)
			if (!(damage && n == BAD) &&
			    memcmp(found + n * PI, meta + n * PI, PI))
				integrity_expect(i, t->name, "metadata of a block", n, -1);
	}

	ret = ib_check_mr_status(i->mr, IB_MR_CHECK_SIG_STATUS, &status);
	integrity_expect(i, t->name, "check", ret, 0);
	integrity_expect(i, t->name, "failure", status.fail_status,
			 error < 0 ? 0 : IB_MR_CHECK_SIG_STATUS);
	if (error >= 0) {
		int shift = error == IB_SIG_BAD_GUARD ? 48 : error == IB_SIG_BAD_APPTAG ? 32 : 0;
		u32 mask = error == IB_SIG_BAD_REFTAG ? ~0 : 0xffff;

		integrity_expect(i, t->name, "error", status.sig_err.err_type, error);
		integrity_expect(i, t->name, "offset", status.sig_err.sig_err_offset,
				 BAD * (BLOCK + PI));
		integrity_expect(i, t->name, "key", status.sig_err.key, i->mr->rkey);
		integrity_expect(i, t->name, "expected", status.sig_err.expected,
				 (u32)(expected >> shift) & mask);
		integrity_expect(i, t->name, "actual", status.sig_err.actual,
				 (u32)(actual >> shift) & mask);
		/* It is reported once. */
		ret = ib_check_mr_status(i->mr, IB_MR_CHECK_SIG_STATUS, &status);
		integrity_expect(i, t->name, "second check", ret ?: (int)status.fail_status, 0);
	}
	integrity_expect(i, t->name, "invalidate", integrity_invalidate(i), IB_WC_SUCCESS);
free:
	integrity_expect(i, t->name, "memory", data && found, true);
	kfree(data);
	kfree(found);
}

#define PROTECTED(...) {								\
		.sig_type = IB_SIG_TYPE_T10_DIF,					\
		.sig.dif = {								\
			.pi_interval = BLOCK,						\
			.app_tag = 0x1234,						\
			.apptag_check_mask = 0xffff,					\
			.ref_tag = 0xfffffffe,						\
			.ref_remap = true,						\
			__VA_ARGS__							\
		},									\
	}

/* Bits of the information of a block. */
#define GUARD_BIT BIT_ULL(53)
#define APP_BIT BIT_ULL(33)
#define REF_BIT BIT_ULL(7)

#define ALL_CHECKS (IB_SIG_CHECK_GUARD | IB_SIG_CHECK_APPTAG | IB_SIG_CHECK_REFTAG)

/* What happens to the information, in the direction in which the owner sends. */
static const struct transfer kinds[] = {
	{ .name = "insert", .wire = PROTECTED() },
	{ .name = "strip", .mem = PROTECTED() },
	{ .name = "pass", .mem = PROTECTED(), .wire = PROTECTED() },
	{ .name = "change guard", .mem = PROTECTED(.bg_type = IB_T10DIF_CSUM),
	  .wire = PROTECTED(.bg_type = IB_T10DIF_CRC, .bg = 0xffff) },
	{ .name = "change tags", .mem = PROTECTED(.ref_remap = false),
	  .wire = PROTECTED(.app_tag = 0x4321, .ref_tag = 5) },
};

static void integrity_all(struct integrity *i)
{
	int kind, way;

	for (kind = 0; kind < ARRAY_SIZE(kinds); kind++) {
		for (way = 0; way < 4; way++) {
			struct transfer t = kinds[kind];
			bool is_source_protected;

			t.which = way & 1 ? PEER : OWNER;
			t.opcode = way & 2 ? IB_WR_RDMA_READ : IB_WR_RDMA_WRITE;
			is_source_protected = (way == 0 || way == 3 ? t.mem : t.wire).sig_type !=
					      IB_SIG_TYPE_NONE;
			integrity_try(i, &t, ALL_CHECKS, 0, -1);
			if (!is_source_protected)
				continue;
			integrity_try(i, &t, ALL_CHECKS, GUARD_BIT, IB_SIG_BAD_GUARD);
			integrity_try(i, &t, ALL_CHECKS, REF_BIT, IB_SIG_BAD_REFTAG);
			integrity_try(i, &t, ALL_CHECKS, APP_BIT, IB_SIG_BAD_APPTAG);
			/* What is not checked may be wrong. */
			integrity_try(i, &t, IB_SIG_CHECK_GUARD, REF_BIT | APP_BIT, -1);
		}
	}
}

/* The application tag says that a block is not to be checked. */
static void integrity_escape(struct integrity *i)
{
	struct transfer t = {
		.name = "escape",
		.mem = PROTECTED(.app_escape = true),
		.which = OWNER,
		.opcode = IB_WR_RDMA_WRITE,
	};

	/* Changes the application tag to 0xffff. */
	u64 damage = GUARD_BIT | (u64)(0xffff ^ 0x1234) << 32;

	integrity_try(i, &t, ALL_CHECKS, damage, -1);
	t.mem.sig.dif.app_escape = false;
	integrity_try(i, &t, IB_SIG_CHECK_GUARD, damage, IB_SIG_BAD_GUARD);
}

/* What cannot be registered is refused when it is posted. */
static void integrity_refused(struct integrity *i)
{
	struct transfer t = kinds[1];
	struct ib_mr_status status;

	/* The first two pieces are not whole blocks. */
	integrity_expect(i, "refused", "part of a block",
			 integrity_register(i, &t, ALL_CHECKS, DATA_PIECES - 1), -EINVAL);
	integrity_expect(i, "refused", "part of a guard",
			 integrity_register(i, &t, 0x80, DATA_PIECES), -EINVAL);
	memset(&t.mem, 0, sizeof(t.mem));
	integrity_expect(i, "refused", "no information",
			 integrity_register(i, &t, ALL_CHECKS, DATA_PIECES), -EINVAL);
	integrity_expect(i, "refused", "unknown check",
			 ib_check_mr_status(i->mr, IB_MR_CHECK_SIG_STATUS << 1, &status), -EINVAL);
}

static void integrity_free(struct integrity *i)
{
	int at;

	for (at = 0; at < 2; at++)
		if (!IS_ERR_OR_NULL(i->qp[at]))
			ib_destroy_qp(i->qp[at]);
	if (!IS_ERR_OR_NULL(i->mr))
		ib_dereg_mr(i->mr);
	if (!IS_ERR_OR_NULL(i->cq))
		ib_free_cq(i->cq);
	if (!IS_ERR_OR_NULL(i->pd))
		ib_dealloc_pd(i->pd);
	if (i->dma)
		ib_dma_unmap_single(i->dev, i->dma, WIRE, DMA_BIDIRECTIONAL);
	if (sg_dma_len(i->sg))
		ib_dma_unmap_sg(i->dev, i->sg, DATA_PIECES, DMA_BIDIRECTIONAL);
	if (sg_dma_len(i->meta_sg))
		ib_dma_unmap_sg(i->dev, i->meta_sg, META_PIECES, DMA_BIDIRECTIONAL);
	kfree(i->wire);
	for (at = 0; at < PIECES; at++)
		free_page((unsigned long)i->page[at]);
	kfree(i);
}

static int integrity_map(struct integrity *i)
{
	int at;

	sg_init_table(i->sg, DATA_PIECES);
	sg_init_table(i->meta_sg, META_PIECES);
	for (at = 0; at < PIECES; at++) {
		struct scatterlist *sg = at < DATA_PIECES ? &i->sg[at] :
							    &i->meta_sg[at - DATA_PIECES];

		i->page[at] = (void *)__get_free_page(GFP_KERNEL);
		if (!i->page[at])
			return -ENOMEM;
		sg_set_buf(sg, (u8 *)i->page[at] + pieces[at].offset, pieces[at].length);
	}
	i->wire = kzalloc(WIRE, GFP_KERNEL);
	if (!i->wire)
		return -ENOMEM;
	if (ib_dma_map_sg(i->dev, i->sg, DATA_PIECES, DMA_BIDIRECTIONAL) != DATA_PIECES ||
	    ib_dma_map_sg(i->dev, i->meta_sg, META_PIECES, DMA_BIDIRECTIONAL) != META_PIECES)
		return -ENOMEM;
	i->dma = ib_dma_map_single(i->dev, i->wire, WIRE, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(i->dev, i->dma)) {
		i->dma = 0;
		return -ENOMEM;
	}
	return 0;
}

static int integrity_make(struct integrity *i)
{
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = 4,
			.max_recv_wr = 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.create_flags = IB_QP_CREATE_INTEGRITY_EN,
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
	};
	int at, ret;

	if (!(i->dev->attrs.kernel_cap_flags & IBK_INTEGRITY_HANDOVER))
		return -EOPNOTSUPP;
	ret = integrity_map(i);
	if (ret)
		return ret;
	i->pd = ib_alloc_pd(i->dev, IB_PD_UNSAFE_GLOBAL_RKEY);
	if (IS_ERR(i->pd))
		return PTR_ERR(i->pd);
	i->cq = ib_alloc_cq(i->dev, i, 16, 0, IB_POLL_DIRECT);
	if (IS_ERR(i->cq))
		return PTR_ERR(i->cq);
	i->mr = ib_alloc_mr_integrity(i->pd, DATA_PIECES, META_PIECES);
	if (IS_ERR(i->mr))
		return PTR_ERR(i->mr);
	init.send_cq = i->cq;
	init.recv_cq = i->cq;
	for (at = 0; at < 2; at++) {
		i->qp[at] = ib_create_qp(i->pd, &init);
		if (IS_ERR(i->qp[at]))
			return PTR_ERR(i->qp[at]);
	}
	for (at = 0; at < 2 && !ret; at++)
		ret = connect_qp(i->qp[at], i->qp[1 - at]->qp_num, REMOTE_ACCESS);
	return ret;
}

static int integrity_add(struct ib_device *dev)
{
	struct integrity *i;
	int ret;

	if (strncmp(dev_name(&dev->dev), "vrnic", 5))
		return -EOPNOTSUPP;
	i = kzalloc(sizeof(*i), GFP_KERNEL);
	if (!i)
		return -ENOMEM;
	i->dev = dev;
	ret = integrity_make(i);
	if (!ret) {
		integrity_all(i);
		integrity_escape(i);
		integrity_refused(i);
	}
	dev_info(&dev->dev, "integrity: %d right, %d wrong: %d\n", i->right, i->wrong, ret);
	integrity_free(i);
	return ret;
}

static void integrity_remove(struct ib_device *dev, void *data)
{
}

static struct ib_client integrity_client = {
	.name = "vrnic-integrity",
	.add = integrity_add,
	.remove = integrity_remove,
};

static int __init integrity_init(void)
{
	return ib_register_client(&integrity_client);
}

static void __exit integrity_exit(void)
{
	ib_unregister_client(&integrity_client);
}

module_init(integrity_init);
module_exit(integrity_exit);
MODULE_DESCRIPTION("Test: a user of memory regions for integrity");
MODULE_LICENSE("Dual BSD/GPL");
