// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Tests the provider between a C program, compiled with the headers of a release, and a device that is an array: what
 * the structures of verbs.h contain must appear as bytes in the rings, and the other way round. This file plays
 * libibverbs, the kernel and the device. layout/check.sh builds it as libibverbs and runs exercise().
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/driver.h>
#include <infiniband/cmd_ioctl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include "vrnic-abi.h"

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "exercise.c:%d: not true: %s\n", __LINE__, #what);                             \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* What the provider has registered and passed to the kernel. */
static const struct verbs_device_ops *provider;
static struct verbs_context_ops ops;
static struct vrnic_alloc_context_req context_req;
static struct vrnic_create_cq_req cq_req;
static struct vrnic_create_qp_req qp_req;
static struct vrnic_modify_qp_req modify_req;
static uint32_t modify_rate;
static struct vrnic_create_srq_req srq_req;
static uint32_t *doorbell, *notify;
static int has_doorbells, kernel_rings, fail_next, no_clock, cq_flags;
static uint64_t device_time;
/* Number of the next queue pair, and number of completions that the device wrote to the queue of cq_req. */
static uint32_t next_qpn = 17, completions;

static void *driver_part(void *cmd, size_t core, size_t size, size_t expected)
{
	CHECK(size - core == expected);
	return (char *)cmd + core;
}

void verbs_register_driver(const struct verbs_device_ops *device_ops)
{
	provider = device_ops;
}

void *_verbs_init_and_alloc_context(struct ibv_device *device, int cmd_fd, size_t alloc_size,
				    struct verbs_context *context_offset, uint32_t driver_id)
{
	char *memory = calloc(1, alloc_size);
	struct verbs_context *context = (void *)(memory + (uintptr_t)context_offset);

	CHECK(driver_id == VRNIC_DRIVER_ID);
	CHECK((uintptr_t)context_offset + sizeof(*context) <= alloc_size);
	context->sz = sizeof(*context);
	context->context.device = device;
	context->context.cmd_fd = cmd_fd;
	context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	return memory;
}

void verbs_uninit_context(struct verbs_context *context)
{
	close(context->context.cmd_fd);
}

void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *table)
{
	ops = *table;
	context->context.ops.post_send = table->post_send;
	context->context.ops.post_recv = table->post_recv;
	context->context.ops.poll_cq = table->poll_cq;
	context->context.ops.req_notify_cq = table->req_notify_cq;
	context->context.ops.post_srq_recv = table->post_srq_recv;
	context->create_cq_ex = table->create_cq_ex;
	context->create_qp_ex = table->create_qp_ex;
}

void __verbs_log(struct verbs_context *context, uint32_t level, const char *format, ...)
{
}

static struct vrnic_alloc_context_resp granted(void)
{
	return (struct vrnic_alloc_context_resp){
		.comp_mask = VRNIC_CONTEXT_NULL_KEY,
		.doorbell_length = has_doorbells ? 4096 : 0,
		.notify_offset = 4096,
		.notify_length = 4096,
		.max_inline_data = 512,
		.null_key = 2,
		.checksum_types = 1 << IBV_QPT_RAW_PACKET,
		.segmentation_types = 1 << IBV_QPT_RAW_PACKET,
	};
}

int ibv_cmd_get_context(struct verbs_context *context, struct ibv_get_context *cmd, size_t cmd_size,
#if RELEASE >= 57
			struct ibv_fd_arr *fd_arr,
#endif
			struct ib_uverbs_get_context_resp *resp, size_t resp_size)
{
	struct vrnic_alloc_context_resp *out = driver_part(resp, sizeof(*resp), resp_size, sizeof(*out));

	memcpy(&context_req, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(context_req)), sizeof(context_req));
	*out = granted();
	return 0;
}

/* The driver's reply: the first page of the device is its doorbell, the second one the notify area. */
int ibv_cmd_query_context(struct ibv_context *context, struct ibv_command_buffer *driver)
{
	struct ib_uverbs_attr *attr = driver->hdr.attrs;
	struct vrnic_alloc_context_resp out = granted();

	CHECK(!driver->next && driver->next_attr == attr + 1 && driver->last_attr == attr + 1 && !driver->buffer_error);
	CHECK(driver->hdr.object_id == UVERBS_OBJECT_DEVICE && driver->hdr.method_id == UVERBS_METHOD_QUERY_CONTEXT);
	CHECK(attr->attr_id == 1 << UVERBS_ID_NS_SHIFT && attr->flags == UVERBS_ATTR_F_MANDATORY);
	CHECK(attr->len == sizeof(out) && !attr->attr_data.reserved);
	memcpy((void *)(uintptr_t)attr->data, &out, sizeof(out));
	return 0;
}

/* There is one protection domain, and a clock. */
#if LEVEL >= 18
/* Whether the kernel does not know where the counts of completion counters are. */
static int unmapped_counters;
#endif

int execute_ioctl(struct ibv_context *context, struct ibv_command_buffer *cmd)
{
	struct ib_uverbs_attr *attr = cmd->hdr.attrs;

#if LEVEL >= 16
	if (cmd->hdr.object_id == UVERBS_OBJECT_DEVICE && cmd->hdr.method_id == UVERBS_METHOD_QUERY_PORT_SPEED) {
		uint64_t speed = 400;

		CHECK(!cmd->next && cmd->next_attr == attr + 2 && cmd->last_attr == attr + 2 && !cmd->buffer_error);
		CHECK(attr[0].attr_id == UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM && attr[0].len == sizeof(uint64_t));
		CHECK(attr[1].attr_id == UVERBS_ATTR_QUERY_PORT_SPEED_RESP && attr[1].len == sizeof(speed));
		CHECK(attr[0].flags == UVERBS_ATTR_F_MANDATORY && attr[1].flags == UVERBS_ATTR_F_MANDATORY);
		if (attr[0].data != 1)
			return EINVAL;
		memcpy((void *)(uintptr_t)attr[1].data, &speed, sizeof(speed));
		return 0;
	}
#endif
	int count = cmd->hdr.object_id == UVERBS_OBJECT_DM ? 2 : 1;

#if LEVEL >= 18
	if (cmd->hdr.object_id == UVERBS_OBJECT_COMP_CNTR)
		count = 2;
#endif

	CHECK(!cmd->next && cmd->next_attr == attr + count && cmd->last_attr == attr + count && !cmd->buffer_error);
	CHECK(cmd->hdr.method_id == 1 << UVERBS_ID_NS_SHIFT);
	CHECK(attr->attr_id == 1 << UVERBS_ID_NS_SHIFT && attr->flags == UVERBS_ATTR_F_MANDATORY);
	if (cmd->hdr.object_id == UVERBS_OBJECT_DM) {
		/* It is mapped after the notify area. */
		struct vrnic_query_dm_resp out = { .map_offset = 8192, .map_length = 4096, .length = 100 };

		CHECK(!attr->len && attr[1].attr_id == (1 << UVERBS_ID_NS_SHIFT) + 1);
		CHECK(attr[1].flags == UVERBS_ATTR_F_MANDATORY && attr[1].len == sizeof(out));
		if (attr->data != 12)
			return ENOENT;
		memcpy((void *)(uintptr_t)attr[1].data, &out, sizeof(out));
		return 0;
	}
#if LEVEL >= 18
	if (cmd->hdr.object_id == UVERBS_OBJECT_COMP_CNTR) {
		/* It is mapped after the device memory. */
		struct vrnic_query_comp_cntr_resp out = { .map_offset = 12288, .map_length = 4096 };

		CHECK(!attr->len && attr[1].attr_id == (1 << UVERBS_ID_NS_SHIFT) + 1);
		CHECK(attr[1].flags == UVERBS_ATTR_F_MANDATORY && attr[1].len == sizeof(out) && attr->data == 16);
		if (unmapped_counters)
			return ENOENT;
		memcpy((void *)(uintptr_t)attr[1].data, &out, sizeof(out));
		return 0;
	}
#endif
	if (cmd->hdr.object_id == UVERBS_OBJECT_DEVICE) {
		struct vrnic_query_clock_resp out = { .time = device_time };

		CHECK(attr->len == sizeof(out) && !attr->attr_data.reserved);
		if (!no_clock)
			memcpy((void *)(uintptr_t)attr->data, &out, sizeof(out));
		return no_clock;
	}
	CHECK(cmd->hdr.object_id == UVERBS_OBJECT_PD && !attr->len);
	return attr->data == 77 ? 0 : ENOENT;
}

int ibv_cmd_query_mr(struct ibv_pd *pd, struct verbs_mr *vmr, uint32_t mr_handle)
{
	if (mr_handle != 5)
		return ENOENT;
	vmr->ibv_mr.context = pd->context;
	vmr->ibv_mr.pd = pd;
	vmr->ibv_mr.handle = mr_handle;
	vmr->ibv_mr.lkey = vmr->ibv_mr.rkey = 9;
	return 0;
}

int ibv_cmd_query_device_any(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			     struct ibv_device_attr_ex *attr, size_t attr_size,
			     struct ib_uverbs_ex_query_device_resp *resp, size_t *resp_size)
{
	struct vrnic_query_device_resp *out = driver_part(resp, sizeof(*resp), *resp_size, sizeof(*out));

	memset(attr, 0, attr_size);
	resp->base.fw_ver = 3ULL << 32 | 2 << 16 | 1;
	out->min_rate_limit = 1;
	out->max_rate_limit = 5000;
	out->rate_limit_types = 1 << IBV_QPT_RC;
	out->max_segmented_length = 262144;
	out->segmentation_types = 1 << IBV_QPT_RAW_PACKET;
	out->hash_fields = 0xff;
	return 0;
}

int ibv_cmd_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr,
		       struct ibv_query_port *cmd, size_t cmd_size)
{
	return 0;
}

int ibv_cmd_alloc_pd(struct ibv_context *context, struct ibv_pd *pd, struct ibv_alloc_pd *cmd, size_t cmd_size,
		     struct ib_uverbs_alloc_pd_resp *resp, size_t resp_size)
{
	pd->context = context;
	pd->handle = 77;
	return 0;
}

int ibv_cmd_dealloc_pd(struct ibv_pd *pd)
{
	return 0;
}

int ibv_cmd_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t hca_va, int access, struct verbs_mr *vmr,
		   struct ibv_reg_mr *cmd, size_t cmd_size, struct ib_uverbs_reg_mr_resp *resp, size_t resp_size)
{
	vmr->ibv_mr.lkey = 5;
	return fail_next;
}

#if LEVEL >= 18
static unsigned int destroyed_comp_cntrs;
/* The last change of a completion counter: of which value, how, and by how much. */
static char changed_value, change;
static uint64_t change_amount;
static uint32_t attached_operations;

int ibv_cmd_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr *comp_cntr,
			     struct ibv_command_buffer *link)
{
	CHECK(context && !link && comp_cntr->context == context);
	comp_cntr->handle = 16;
	return fail_next;
}

int ibv_cmd_destroy_comp_cntr(struct ibv_comp_cntr *comp_cntr)
{
	CHECK(comp_cntr->handle == 16);
	destroyed_comp_cntrs += !fail_next;
	return fail_next;
}

#define CHANGE(name, value, how)                                                                                       \
	int name(struct ibv_comp_cntr *comp_cntr, uint64_t amount)                                                     \
	{                                                                                                              \
		CHECK(comp_cntr->handle == 16);                                                                        \
		changed_value = value;                                                                                 \
		change = how;                                                                                          \
		change_amount = amount;                                                                                \
		return fail_next;                                                                                      \
	}

CHANGE(ibv_cmd_set_comp_cntr, 'c', 's')
CHANGE(ibv_cmd_set_err_comp_cntr, 'e', 's')
CHANGE(ibv_cmd_inc_comp_cntr, 'c', 'i')
CHANGE(ibv_cmd_inc_err_comp_cntr, 'e', 'i')

int ibv_cmd_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *comp_cntr,
				struct ibv_qp_attach_comp_cntr_attr *attr)
{
	CHECK(qp && comp_cntr->handle == 16 && !attr->comp_mask);
	attached_operations = attr->op_mask;
	return fail_next;
}

int ibv_cmd_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t caps_size)
{
	CHECK(context && caps_size == sizeof(*caps));
	caps->max_counters = 17;
	return fail_next;
}
#endif

#if RELEASE >= 59
int ibv_cmd_reg_mr_ex(struct ibv_pd *pd, struct verbs_mr *vmr, struct ibv_mr_init_attr *attr)
{
	CHECK(pd && attr->length == 24 && attr->comp_mask == IBV_REG_MR_MASK_ADDR);
	vmr->ibv_mr.lkey = 14;
	return fail_next;
}

int ibv_cmd_alloc_dmah(struct ibv_context *ctx, struct verbs_dmah *dmah, struct ibv_dmah_init_attr *attr)
{
	CHECK(ctx && attr->comp_mask == IBV_DMAH_INIT_ATTR_MASK_PH && attr->ph == 3);
	dmah->handle = 15;
	return fail_next;
}

int ibv_cmd_free_dmah(struct verbs_dmah *dmah)
{
	CHECK(dmah->handle == 15);
	return fail_next;
}

#endif

int ibv_cmd_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access,
			  struct verbs_mr *vmr
#if RELEASE >= 54
			  , struct ibv_command_buffer *driver
#endif
			  )
{
	CHECK(pd && offset == 4096 && length == 8 && iova == 0x10000 && fd == 3 && access == 1);
#if RELEASE >= 54
	CHECK(!driver);
#endif
	vmr->ibv_mr.lkey = 9;
	return fail_next;
}

static unsigned int freed_dms;

int ibv_cmd_alloc_dm(struct ibv_context *ctx, const struct ibv_alloc_dm_attr *dm_attr, struct verbs_dm *dm,
		     struct ibv_command_buffer *link)
{
	CHECK(dm_attr->length == 100 && dm_attr->log_align_req == 6 && !link);
	dm->handle = dm->dm.handle = 12;
	dm->dm.comp_mask = IBV_DM_MASK_HANDLE;
	dm->dm.context = ctx;
	return fail_next;
}

int ibv_cmd_free_dm(struct verbs_dm *dm)
{
	CHECK(dm->handle == 12);
	freed_dms += !fail_next;
	return fail_next;
}

int ibv_cmd_reg_dm_mr(struct ibv_pd *pd, struct verbs_dm *dm, uint64_t offset, size_t length, unsigned int access,
		      struct verbs_mr *vmr, struct ibv_command_buffer *link)
{
	CHECK(pd && dm->handle == 12 && offset == 8 && length == 16 && access == 33 && !link);
	vmr->ibv_mr.lkey = 13;
	return fail_next;
}

int ibv_cmd_rereg_mr(struct verbs_mr *vmr, uint32_t flags, void *addr, size_t length, uint64_t hca_va, int access,
		     struct ibv_pd *pd, struct ibv_rereg_mr *cmd, size_t cmd_size, struct ib_uverbs_rereg_mr_resp *resp,
		     size_t resp_size)
{
	CHECK(flags == 7 && hca_va == (uintptr_t)addr && length == 16 && access == 1 && pd);
	CHECK(cmd_size == sizeof(*cmd) && resp_size == sizeof(*resp));
	vmr->ibv_mr.lkey = 6;
	return fail_next;
}

static unsigned int deregistered;

int ibv_cmd_dereg_mr(struct verbs_mr *vmr)
{
	deregistered++;
	return 0;
}

int ibv_cmd_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg_list,
		      uint32_t num_sge)
{
	CHECK(pd && advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE && flags == IBV_ADVISE_MR_FLAG_FLUSH);
	CHECK(sg_list->lkey == 5 && num_sge == 1);
	return fail_next;
}

int ibv_cmd_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type, struct ibv_mw *mw, struct ibv_alloc_mw *cmd,
		     size_t cmd_size, struct ib_uverbs_alloc_mw_resp *resp, size_t resp_size)
{
	CHECK(cmd_size == sizeof(*cmd) && resp_size == sizeof(*resp));
	mw->pd = pd;
	mw->type = type;
	mw->rkey = 0x112233ff;
	return fail_next;
}

int ibv_cmd_dealloc_mw(struct ibv_mw *mw)
{
	return 0;
}

int ibv_cmd_create_ah(struct ibv_pd *pd, struct ibv_ah *ah, struct ibv_ah_attr *attr,
		      struct ib_uverbs_create_ah_resp *resp, size_t resp_size)
{
	struct vrnic_create_ah_resp *out = driver_part(resp, sizeof(*resp), resp_size, sizeof(*out));

	memset(out->address, 0xa5, sizeof(out->address));
	return 0;
}

int ibv_cmd_destroy_ah(struct ibv_ah *ah)
{
	return 0;
}

static int create_cq(struct ibv_context *context, struct ibv_cq *cq, int cqe, void *req)
{
	if (fail_next)
		return fail_next;
	memcpy(&cq_req, req, sizeof(cq_req));
	completions = 0;
	cq->context = context;
	cq->cqe = cqe;
	return 0;
}

int ibv_cmd_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel, int comp_vector,
		      struct ibv_cq *cq, struct ibv_create_cq *cmd, size_t cmd_size,
		      struct ib_uverbs_create_cq_resp *resp, size_t resp_size)
{
	driver_part(resp, sizeof(*resp), resp_size, sizeof(struct vrnic_create_cq_resp));
	return create_cq(context, cq, cqe, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(cq_req)));
}

int ibv_cmd_create_cq_ex(struct ibv_context *context, const struct ibv_cq_init_attr_ex *attr,
#if RELEASE >= 59
			 struct verbs_create_cq_prov_attr *prov_attr,
#endif
			 struct verbs_cq *cq, struct ibv_create_cq_ex *cmd, size_t cmd_size,
			 struct ib_uverbs_ex_create_cq_resp *resp, size_t resp_size, uint32_t cmd_flags)
{
	driver_part(resp, sizeof(*resp), resp_size, sizeof(struct vrnic_create_cq_resp));
	CHECK(!(attr->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS));
	cq_flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	return create_cq(context, &cq->cq, attr->cqe, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(cq_req)));
}

int ibv_cmd_resize_cq(struct ibv_cq *cq, int cqe, struct ibv_resize_cq *cmd, size_t cmd_size,
		      struct ib_uverbs_resize_cq_resp *resp, size_t resp_size)
{
	CHECK(resp_size == sizeof(*resp));
	if (fail_next)
		return fail_next;
	memcpy(&cq_req, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(cq_req)), sizeof(cq_req));
	cq->cqe = cq_req.ring.entries;
	return 0;
}

int ibv_cmd_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr, struct ibv_modify_cq *cmd, size_t cmd_size)
{
	CHECK(cmd_size == sizeof(*cmd) && attr->moderate.cq_count == 3);
	return fail_next;
}

int ibv_cmd_destroy_cq(struct ibv_cq *cq)
{
	return 0;
}

int ibv_cmd_create_srq(struct ibv_pd *pd, struct ibv_srq *srq, struct ibv_srq_init_attr *attr,
		       struct ibv_create_srq *cmd, size_t cmd_size, struct ib_uverbs_create_srq_resp *resp,
		       size_t resp_size)
{
	struct vrnic_create_srq_resp *out = driver_part(resp, sizeof(*resp), resp_size, sizeof(*out));

	memcpy(&srq_req, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(srq_req)), sizeof(srq_req));
	out->srqn = 9;
	srq->context = pd->context;
	srq->pd = pd;
	attr->attr.max_wr = srq_req.ring.entries;
	attr->attr.max_sge = (srq_req.ring.stride - 16) / 16;
	return fail_next;
}

int ibv_cmd_create_srq_ex(struct ibv_context *context, struct verbs_srq *srq, struct ibv_srq_init_attr_ex *attr,
			  struct ibv_create_xsrq *cmd, size_t cmd_size, struct ib_uverbs_create_srq_resp *resp,
			  size_t resp_size)
{
	struct vrnic_create_srq_resp *out = driver_part(resp, sizeof(*resp), resp_size, sizeof(*out));

	CHECK(attr->srq_type == IBV_SRQT_XRC && attr->xrcd && attr->cq);
	memcpy(&srq_req, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(srq_req)), sizeof(srq_req));
	out->srqn = 10;
	srq->srq.context = context;
	srq->srq.pd = attr->pd;
	attr->attr.max_wr = srq_req.ring.entries;
	attr->attr.max_sge = (srq_req.ring.stride - 16) / 16;
	return fail_next;
}

int ibv_cmd_open_xrcd(struct ibv_context *context, struct verbs_xrcd *xrcd, int vxrcd_size,
		      struct ibv_xrcd_init_attr *attr, struct ibv_open_xrcd *cmd, size_t cmd_size,
		      struct ib_uverbs_open_xrcd_resp *resp, size_t resp_size)
{
	CHECK(vxrcd_size == sizeof(*xrcd) && cmd_size == sizeof(*cmd) && resp_size == sizeof(*resp));
	xrcd->xrcd.context = context;
	xrcd->handle = attr->fd;
	return fail_next;
}

int ibv_cmd_close_xrcd(struct verbs_xrcd *xrcd)
{
	return fail_next;
}

int ibv_cmd_open_qp(struct ibv_context *context, struct verbs_qp *qp, int vqp_sz, struct ibv_qp_open_attr *attr,
		    struct ibv_open_qp *cmd, size_t cmd_size, struct ib_uverbs_create_qp_resp *resp, size_t resp_size)
{
	CHECK(vqp_sz == sizeof(*qp) && cmd_size == sizeof(*cmd) && resp_size == sizeof(*resp));
	qp->qp.context = context;
	qp->qp.qp_num = attr->qp_num;
	return fail_next;
}

int ibv_cmd_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, int srq_attr_mask,
		       struct ibv_modify_srq *cmd, size_t cmd_size)
{
	if (!(srq_attr_mask & IBV_SRQ_MAX_WR))
		CHECK(cmd_size == sizeof(*cmd));
	else if (!fail_next)
		memcpy(&srq_req, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(srq_req)), sizeof(srq_req));
	return fail_next;
}

int ibv_cmd_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, struct ibv_query_srq *cmd, size_t cmd_size)
{
	CHECK(cmd_size == sizeof(*cmd));
	srq_attr->srq_limit = 3;
	return 0;
}

int ibv_cmd_destroy_srq(struct ibv_srq *srq)
{
	return fail_next;
}

/* Creation flags of the last queue pair or receive work queue. */
static uint32_t create_flags;

static struct vrnic_create_scaling_qp_req scaling_req;

int ibv_cmd_create_qp_ex2(struct ibv_context *context, struct verbs_qp *qp, struct ibv_qp_init_attr_ex *attr,
			  struct ibv_create_qp_ex *cmd, size_t cmd_size, struct ib_uverbs_ex_create_qp_resp *resp,
			  size_t resp_size
#if RELEASE >= 64
			  , struct ibv_command_buffer *driver
#endif
			  )
{
	struct vrnic_create_qp_resp *out;

	if (attr->comp_mask & IBV_QP_INIT_ATTR_IND_TABLE) {
		CHECK(resp_size == sizeof(*resp) && attr->rwq_ind_tbl->ind_tbl_handle == 15);
		memcpy(&scaling_req, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(scaling_req)), sizeof(scaling_req));
		qp->qp.context = context;
		qp->qp.qp_num = 19;
		qp->qp.qp_type = attr->qp_type;
		qp->comp_mask = 0;
		return fail_next;
	}
	CHECK(!(attr->comp_mask & ~(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
				    IBV_QP_INIT_ATTR_CREATE_FLAGS)));
	out = driver_part(resp, sizeof(*resp), resp_size, sizeof(*out));
	create_flags = attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS ? attr->create_flags : 0;
	memcpy(&qp_req, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(qp_req)), sizeof(qp_req));
	out->slot = 130;
	qp->qp.context = context;
	qp->qp.qp_num = next_qpn;
	/* As in the driver: the limits are what the rings have room for. */
	attr->cap.max_send_wr = qp_req.sq.entries;
	attr->cap.max_recv_wr = qp_req.rq.entries;
	attr->cap.max_send_sge = qp_req.sq.entries ? (qp_req.sq.stride - 64) / 16 : 0;
	attr->cap.max_inline_data = qp_req.sq.entries ? qp_req.sq.stride - 64 : 0;
	attr->cap.max_recv_sge = qp_req.rq.entries ? (qp_req.rq.stride - 16) / 16 : 0;
	qp->qp.qp_type = attr->qp_type;
	qp->comp_mask = 0;
	return fail_next;
}

static struct ibv_wq_attr wq_change;

int ibv_cmd_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attr, struct ibv_wq *wq,
		      struct ibv_create_wq *cmd, size_t cmd_size, struct ib_uverbs_ex_create_wq_resp *resp,
		      size_t resp_size)
{
	struct vrnic_create_qp_resp *out = driver_part(resp, sizeof(*resp), resp_size, sizeof(*out));

	create_flags = attr->comp_mask & IBV_WQ_INIT_ATTR_FLAGS ? attr->create_flags : 0;
	memcpy(&srq_req, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(srq_req)), sizeof(srq_req));
	out->slot = 130;
	wq->context = context;
	wq->cq = attr->cq;
	wq->wq_num = 20;
	attr->max_wr = srq_req.ring.entries;
	attr->max_sge = (srq_req.ring.stride - 16) / 16;
	return fail_next;
}

int ibv_cmd_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attr, struct ibv_modify_wq *cmd, size_t cmd_size)
{
	CHECK(cmd_size == sizeof(*cmd));
	wq_change = *attr;
	return fail_next;
}

int ibv_cmd_destroy_wq(struct ibv_wq *wq)
{
	return fail_next;
}

int ibv_cmd_create_rwq_ind_table(struct ibv_context *context, struct ibv_rwq_ind_table_init_attr *attr,
				 struct ibv_rwq_ind_table *table, struct ib_uverbs_ex_create_rwq_ind_table_resp *resp,
				 size_t resp_size)
{
	CHECK(resp_size == sizeof(*resp));
	table->context = context;
	table->ind_tbl_handle = 15;
	return fail_next;
}

int ibv_cmd_destroy_rwq_ind_table(struct ibv_rwq_ind_table *table)
{
	CHECK(table->ind_tbl_handle == 15);
	return fail_next;
}

/* Number of times that a queue pair was changed. */
static atomic_uint modified;

int ibv_cmd_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_modify_qp *cmd,
		      size_t cmd_size)
{
	modified++;
	return fail_next;
}

int ibv_cmd_modify_qp_ex(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_modify_qp_ex *cmd,
			 size_t cmd_size, struct ib_uverbs_ex_modify_qp_resp *resp, size_t resp_size)
{
	CHECK(resp_size == sizeof(*resp) && attr_mask & IBV_QP_RATE_LIMIT);
	memcpy(&modify_req, driver_part(cmd, sizeof(*cmd), cmd_size, sizeof(modify_req)), sizeof(modify_req));
	modify_rate = attr->rate_limit;
	return fail_next;
}

int ibv_cmd_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr,
		     struct ibv_query_qp *cmd, size_t cmd_size)
{
	memset(attr, 0, sizeof(*attr));
	memset(init_attr, 0, sizeof(*init_attr));
	return 0;
}

int ibv_cmd_destroy_qp(struct ibv_qp *qp)
{
	return 0;
}

int ibv_cmd_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	CHECK(!wr && (qp->qp_num == 17 || qp->qp_num == 18));
	kernel_rings++;
	return 0;
}

static unsigned int destroyed_flows;

int ibv_cmd_create_flow(struct ibv_qp *qp, struct ibv_flow *flow_id, struct ibv_flow_attr *flow_attr, void *ucmd,
			size_t ucmd_size)
{
	CHECK(flow_attr->priority == 3 && !ucmd && !ucmd_size);
	flow_id->context = qp->context;
	flow_id->handle = 14;
	return fail_next;
}

int ibv_cmd_destroy_flow(struct ibv_flow *flow_id)
{
	CHECK(flow_id->handle == 14);
	destroyed_flows += !fail_next;
	return fail_next;
}

int ibv_cmd_create_counters(struct ibv_context *context, struct ibv_counters_init_attr *init_attr,
			    struct verbs_counters *vcounters, struct ibv_command_buffer *link)
{
	CHECK(!link);
	vcounters->counters.context = context;
	vcounters->handle = 16;
	return fail_next;
}

static int destroyed_counters;

int ibv_cmd_destroy_counters(struct verbs_counters *vcounters)
{
	CHECK(vcounters->handle == 16);
	destroyed_counters += !fail_next;
	return fail_next;
}

int ibv_cmd_read_counters(struct verbs_counters *vcounters, uint64_t *counters_value, uint32_t ncounters,
			  uint32_t flags, struct ibv_command_buffer *link)
{
	CHECK(vcounters->handle == 16 && ncounters == 2 && !link);
	CHECK(flags == IBV_READ_COUNTERS_ATTR_PREFER_CACHED);
	counters_value[0] = 7;
	counters_value[1] = 700;
	return fail_next;
}

int ibv_cmd_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return 0;
}

int ibv_cmd_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return 0;
}

/* Bytes that no child process gets, because the device has them, and the error for more of them. */
static size_t kept_bytes;
static int fork_error;

int ibv_dontfork_range(void *base, size_t size)
{
	CHECK((uintptr_t)base % 4096 == 0 && size && size % 4096 == 0);
	if (fork_error) {
		errno = fork_error;
		return fork_error;
	}
	kept_bytes += size;
	return 0;
}

int ibv_dofork_range(void *base, size_t size)
{
	CHECK((uintptr_t)base % 4096 == 0 && size && size <= kept_bytes);
	kept_bytes -= size;
	return 0;
}

/* The device: words of the rings, by the offsets of the standard. */
static uint32_t *header(uint64_t buffer, struct vrnic_ring *ring)
{
	return (uint32_t *)(uintptr_t)(buffer + ring->header_offset);
}

static uint8_t *entry(uint64_t buffer, struct vrnic_ring *ring, uint32_t index)
{
	CHECK((index & (ring->entries - 1)) * ring->stride + ring->stride + ring->entries_offset <= 1 << 20);
	return (uint8_t *)(uintptr_t)(buffer + ring->entries_offset + (index & (ring->entries - 1)) * ring->stride);
}

static uint32_t get32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static uint64_t get64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static uint32_t sent(void)
{
	return *header(qp_req.buf_addr, &qp_req.sq);
}

static uint8_t *send_entry(uint32_t index)
{
	return entry(qp_req.buf_addr, &qp_req.sq, index);
}

/* The device's name for a request: the number of the queue and the index of the entry. */
static uint64_t send_name(struct vrnic_create_qp_req *req, uint32_t index)
{
	uint64_t name = get64(entry(req->buf_addr, &req->sq, index) + 8);

	CHECK((uint32_t)name == index);
	return name;
}

static uint64_t receive_name(struct vrnic_create_qp_req *req, uint32_t index)
{
	uint64_t name = get64(entry(req->buf_addr, &req->rq, index));

	CHECK((uint32_t)name == index);
	return name;
}

/* Writes the next completion, with all flags and a different value in each member. */
static void complete(uint32_t qpn, uint64_t name, uint8_t opcode, uint8_t flags)
{
	uint8_t *cqe = entry(cq_req.buf_addr, &cq_req.ring, completions);

	CHECK(completions - *header(cq_req.buf_addr, &cq_req.ring) < cq_req.ring.entries);
	memset(cqe, 0, 63);
	*(uint64_t *)cqe = name;
	*(uint32_t *)(cqe + 8) = qpn;
	cqe[12] = opcode;
	cqe[13] = 0;
	cqe[14] = flags;
	cqe[15] = 3;
	*(uint32_t *)(cqe + 16) = 44;
	*(uint32_t *)(cqe + 20) = 0x01020304;
	*(uint32_t *)(cqe + 24) = 55;
	*(uint16_t *)(cqe + 28) = 66;
	*(uint16_t *)(cqe + 30) = 0xa123;
	*(uint32_t *)(cqe + 32) = 77;
	/* If there is a GRH, there is a packet with the right checksums behind it. */
	cqe[42] = flags & 1;
	*(uint64_t *)(cqe + 48) = 88;
	*(uint32_t *)(cqe + 56) = 0x00abcdef;
	__atomic_store_n(&cqe[63], !(completions & cq_req.ring.entries), __ATOMIC_RELEASE);
	completions++;
}

/* Number of completions returned to the device. */
static uint32_t polled(void)
{
	return *header(cq_req.buf_addr, &cq_req.ring);
}

/* Clears the bits that mean that the slot has work. Returns whether they were set. */
static int take_bits(void)
{
	uint64_t *area = (uint64_t *)notify;
	int summary = area[8] == 1 << (130 / 64), pending = area[32 + 130 / 64] == 1ULL << (130 % 64);

	area[8] = 0;
	area[32 + 130 / 64] = 0;
	return summary && pending;
}

static int modify(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return ops.modify_qp(qp, &attr, IBV_QP_STATE);
}

static void to_rts(struct ibv_qp *qp)
{
	CHECK(!modify(qp, IBV_QPS_INIT) && !modify(qp, IBV_QPS_RTR) && !modify(qp, IBV_QPS_RTS));
}

static struct ibv_context *open_device(void)
{
	static struct ibv_device device;
	int fd = memfd_create("uverbs", 0);
	struct verbs_context *context;

	CHECK(fd >= 0 && !ftruncate(fd, 4 * 4096));
	doorbell = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(doorbell != MAP_FAILED);
	notify = doorbell + 1024;
	context = provider->alloc_context(&device, fd, NULL);
	CHECK(context && verbs_get_ctx(&context->context) == context);
	CHECK(context_req.slots >= 64 && !context_req.comp_mask);
	return &context->context;
}

/* Creates a queue pair for 8 sends and 4 receives. */
static struct ibv_qp *connected(struct ibv_pd *pd, struct ibv_cq *send_cq, struct ibv_cq *recv_cq, uint32_t qpn)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp;

	next_qpn = qpn;
	qp = ops.create_qp(pd, &attr);
	next_qpn = 17;
	CHECK(qp && qp->qp_num == qpn && qp_req.sq.entries == 8 && qp_req.rq.entries == 4);
	to_rts(qp);
	return qp;
}

static int post_send(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .opcode = IBV_WR_SEND };

	return ibv_post_send(qp, &wr, &bad);
}

static int post_receive(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id };

	return ibv_post_recv(qp, &wr, &bad);
}

static void completion_queues(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 3,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	struct vrnic_create_qp_req other_req;
	struct ibv_poll_cq_attr poll = {};
	struct ibv_qp *qp, *other;
	struct ibv_wc wc[8];
	struct ibv_cq_ex *ex;
	struct ibv_cq *cq;
	uint32_t *arm;

	CHECK(!ops.create_cq(context, 0, NULL, 0) && errno == EINVAL);
	CHECK(!ops.create_cq(context, -1, NULL, 0) && errno == EINVAL);
	fail_next = ENOSPC;
	CHECK(!ops.create_cq(context, 5, NULL, 0) && errno == ENOSPC);
	fail_next = 0;

	cq = ops.create_cq(context, 5, NULL, 0);
	CHECK(cq && cq_req.ring.entries == 8 && cq_req.ring.stride == 64);
	CHECK(ibv_poll_cq(cq, 8, wc) == 0);
	qp = connected(pd, cq, cq, 17);
	for (uint32_t i = 0; i < 20; i++) {
		CHECK(!post_receive(qp, 1000 + i) && ibv_poll_cq(cq, 8, wc) == 0);
		complete(17, receive_name(&qp_req, i), IBV_WC_RECV, i % 2 ? 1 << 0 | 1 << 1 : 1 << 2);
		CHECK(ibv_poll_cq(cq, 8, wc) == 1);
		CHECK(wc->wr_id == 1000 + i && wc->status == IBV_WC_SUCCESS && wc->opcode == IBV_WC_RECV);
		CHECK(wc->qp_num == 17 && wc->byte_len == 44 && wc->src_qp == 55 && wc->pkey_index == 66);
		CHECK(wc->vendor_err == 77 && wc->sl == 3 && !wc->slid && !wc->dlid_path_bits);
		CHECK(wc->wc_flags == (i % 2 ? IBV_WC_GRH | IBV_WC_WITH_IMM | IBV_WC_IP_CSUM_OK : IBV_WC_WITH_INV));
		CHECK(i % 2 ? wc->imm_data == htobe32(0x01020304) : wc->invalidated_rkey == 0x01020304);
		CHECK(polled() == i + 1);
	}
	for (uint32_t i = 0; i < 8; i++) {
		CHECK(!post_send(qp, 1020 + i));
		complete(17, send_name(&qp_req, i), IBV_WC_SEND, 0);
	}
	CHECK(send_name(&qp_req, 0) >> 32 != receive_name(&qp_req, 19) >> 32);
	CHECK(ibv_poll_cq(cq, 5, wc) == 5 && wc[0].wr_id == 1020 && wc[4].wr_id == 1024);
	CHECK(ibv_poll_cq(cq, 5, wc) == 3 && wc[2].wr_id == 1027);

	arm = header(cq_req.buf_addr, &cq_req.ring) + 1;
	CHECK(!ibv_req_notify_cq(cq, 0) && *arm == (1 << 2 | 1));
	CHECK(!ibv_req_notify_cq(cq, 1) && *arm == (2 << 2 | 3));
	ops.cq_event(cq);
	CHECK(!ibv_req_notify_cq(cq, 1) && *arm == (3 << 2 | 2));
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(cq));

	attr.wc_flags |= IBV_WC_EX_WITH_TM_INFO;
	CHECK(!ops.create_cq_ex(context, &attr) && errno == EOPNOTSUPP);
	attr.wc_flags &= ~(uint64_t)IBV_WC_EX_WITH_TM_INFO;
	ex = ops.create_cq_ex(context, &attr);
	CHECK(ex && cq_req.ring.entries == 4);
	qp = connected(pd, ibv_cq_ex_to_cq(ex), ibv_cq_ex_to_cq(ex), 17);
	for (uint32_t round = 0; round < 6; round++) {
		CHECK(ibv_start_poll(ex, &poll) == ENOENT);
		for (uint32_t i = 3 * round; i < 3 * round + 3; i++) {
			CHECK(!post_receive(qp, 1000 + i));
			complete(17, receive_name(&qp_req, i), IBV_WC_RECV_RDMA_WITH_IMM, 1 << 1);
		}
		CHECK(!ibv_start_poll(ex, NULL) && ex->wr_id == 1000 + 3 * round && ex->status == IBV_WC_SUCCESS);
		CHECK(ibv_wc_read_opcode(ex) == IBV_WC_RECV_RDMA_WITH_IMM && ibv_wc_read_byte_len(ex) == 44);
		CHECK(ibv_wc_read_imm_data(ex) == htobe32(0x01020304) && ibv_wc_read_qp_num(ex) == 17);
		CHECK(ibv_wc_read_src_qp(ex) == 55 && ibv_wc_read_vendor_err(ex) == 77 && ibv_wc_read_sl(ex) == 3);
		CHECK(ibv_wc_read_wc_flags(ex) == IBV_WC_WITH_IMM && !ibv_wc_read_slid(ex));
		CHECK(!ibv_wc_read_dlid_path_bits(ex) && ibv_wc_read_completion_ts(ex) == 88);
		CHECK(!ibv_next_poll(ex) && ex->wr_id == 1001 + 3 * round);
		CHECK(!ibv_next_poll(ex) && ex->wr_id == 1002 + 3 * round && ibv_next_poll(ex) == ENOENT);
		ibv_end_poll(ex);
		CHECK(polled() == 3 * round + 3);
	}
	poll.comp_mask = 1;
	CHECK(ibv_start_poll(ex, &poll) == EINVAL);

	/* The polling thread may use the queue in other ways, too. */
	for (uint32_t i = 18; i < 20; i++) {
		CHECK(!post_receive(qp, 1000 + i));
		complete(17, receive_name(&qp_req, i), IBV_WC_RECV, 1 << 0 | (i == 18) << 4);
	}
	CHECK(!ibv_start_poll(ex, NULL) && ex->wr_id == 1018 && ibv_wc_read_cvlan(ex) == 0xa123);
	CHECK(ibv_wc_read_flow_tag(ex) == 0x00abcdef);
	CHECK(ibv_wc_read_wc_flags(ex) == (IBV_WC_GRH | IBV_WC_IP_CSUM_OK));
	other_req = qp_req;
	other = connected(pd, ibv_cq_ex_to_cq(ex), ibv_cq_ex_to_cq(ex), 18);
	CHECK(!modify(other, IBV_QPS_RESET) && !ops.destroy_qp(other));
	qp_req = other_req;
	CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(ex), 0));
	ops.cq_event(ibv_cq_ex_to_cq(ex));
	CHECK(!ibv_next_poll(ex) && ex->wr_id == 1019 && !ibv_wc_read_cvlan(ex) && ibv_next_poll(ex) == ENOENT);
	ibv_end_poll(ex);
	CHECK(polled() == 20);
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(ibv_cq_ex_to_cq(ex)));
}

/* A queue of 4 entries that is not polled while 10 sends complete. */
static void ignored_overrun(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 4,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
	};
	struct ibv_wc wc[8];
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	int polled = 0;

	cq = ibv_cq_ex_to_cq(ops.create_cq_ex(context, &attr));
	CHECK(cq && !cq_flags && !ops.destroy_cq(cq));
	attr.flags |= IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN << 1;
	CHECK(!ops.create_cq_ex(context, &attr) && errno == EOPNOTSUPP);
	attr.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	cq = ibv_cq_ex_to_cq(ops.create_cq_ex(context, &attr));
	CHECK(cq && cq_flags == IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	qp = connected(pd, cq, cq, 17);
	for (int i = 0; i < 8; i++)
		CHECK(!post_send(qp, 700 + i));
	CHECK(post_send(qp, 708) == ENOMEM);
	for (int i = 0; i < 8; i++) {
		/* As if there were room. */
		*header(cq_req.buf_addr, &cq_req.ring) = completions;
		complete(17, send_name(&qp_req, i), IBV_WC_SEND, 0);
	}
	/* The index of the device. */
	header(cq_req.buf_addr, &cq_req.ring)[16] = 8;
	while (ibv_poll_cq(cq, 1, wc) == 1)
		CHECK(wc->status == IBV_WC_SUCCESS && wc->wr_id == 704 + polled++);
	CHECK(polled == 4);
	/* Completed sends leave room, whether or not their completions were lost. */
	for (int i = 0; i < 8; i++)
		CHECK(!post_send(qp, 708 + i));
	take_bits();
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(cq));
}

static void *reset(void *qp)
{
	CHECK(!modify(qp, IBV_QPS_RESET));
	return NULL;
}

/* A thread may post to a queue pair while it polls, even if another thread resets the queue pair. */
static void reset_while_polling(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 3 };
	struct ibv_cq_ex *ex = ops.create_cq_ex(context, &attr);
	struct ibv_poll_cq_attr poll = {};
	unsigned int before;
	pthread_t thread;
	struct ibv_qp *qp;

	CHECK(ex);
	completions = 0;
	qp = connected(pd, ibv_cq_ex_to_cq(ex), ibv_cq_ex_to_cq(ex), 17);
	CHECK(!post_send(qp, 1));
	complete(17, send_name(&qp_req, 0), IBV_WC_SEND, 0);
	CHECK(!ibv_start_poll(ex, &poll) && ex->wr_id == 1);
	before = modified;
	CHECK(!pthread_create(&thread, NULL, reset, qp));
	while (modified == before)
		sched_yield();
	/* The other thread is about to wait for the completion queue. */
	usleep(10000);
	alarm(60);
	post_receive(qp, 2);
	post_send(qp, 3);
	ibv_end_poll(ex);
	CHECK(!pthread_join(thread, NULL));
	alarm(0);
	CHECK(ibv_start_poll(ex, &poll) == ENOENT && post_send(qp, 4) == EINVAL);
	take_bits();
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(ibv_cq_ex_to_cq(ex)));
}

static uint64_t time_of_day(void)
{
	struct timespec now;

	CHECK(!clock_gettime(CLOCK_REALTIME, &now));
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

/* Completions are stamped with 88, by a clock that shows 1088. */
static void clocks(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 3,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_values_ex values = { .comp_mask = 2 };
	uint64_t before, after, stamp;
	struct ibv_cq_ex *ex;
	struct ibv_qp *qp;

	CHECK(ops.query_rt_values(context, &values) == EINVAL);
	values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	device_time = 1ULL << 62;
	CHECK(!ops.query_rt_values(context, &values) && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	CHECK(!values.raw_clock.tv_sec && values.raw_clock.tv_nsec == 1LL << 62);
	values.comp_mask = 0;
	device_time = 0;
	CHECK(!ops.query_rt_values(context, &values) && values.raw_clock.tv_nsec == 1LL << 62);

	/* The device has no such clock; the driver is too old; the device is gone. */
	values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	for (int i = 0; i < 3; i++) {
		int expected[] = { EOPNOTSUPP, EOPNOTSUPP, EIO };

		no_clock = (int[]){ EOPNOTSUPP, EPROTONOSUPPORT, EIO }[i];
		CHECK(ops.query_rt_values(context, &values) == expected[i]);
		errno = 0;
		CHECK(!ops.create_cq_ex(context, &attr) && errno == expected[i]);
	}
	no_clock = 0;

	device_time = 1088;
	before = time_of_day();
	ex = ops.create_cq_ex(context, &attr);
	after = time_of_day();
	CHECK(ex && !ex->read_completion_ts);
	qp = connected(pd, ibv_cq_ex_to_cq(ex), ibv_cq_ex_to_cq(ex), 17);
	CHECK(!post_receive(qp, 1000));
	complete(17, receive_name(&qp_req, 0), IBV_WC_RECV, 0);
	CHECK(!ibv_start_poll(ex, NULL));
	stamp = ibv_wc_read_completion_wallclock_ns(ex);
	CHECK(before - 1000 <= stamp && stamp <= after - 1000);
	ibv_end_poll(ex);
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(ibv_cq_ex_to_cq(ex)));
}

/*
 * Writes four completions of requests that are not posted: of the send with that name, which has completed; of one not
 * posted yet; of a queue that does not exist; and of something that is not a name.
 */
static void complete_nothing(uint64_t send)
{
	complete(17, send, IBV_WC_SEND, 0);
	complete(17, send + 2, IBV_WC_SEND, 0);
	complete(17, send + (9ULL << 32), IBV_WC_SEND, 0);
	complete(17, ~0ULL, IBV_WC_RECV, 0);
}

static void nothing_completes(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *ex;
	struct ibv_wc wc[8];
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	/* Skipped entries are returned to the device, whether or not another completion is found. */
	cq = ops.create_cq(context, 4, NULL, 0);
	qp = connected(pd, cq, cq, 17);
	CHECK(!post_send(qp, 100) && !post_send(qp, 101) && !post_send(qp, 102) && !post_receive(qp, 200));
	complete(17, send_name(&qp_req, 1), IBV_WC_SEND, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 1 && wc->wr_id == 101);
	complete_nothing(send_name(&qp_req, 1));
	CHECK(ibv_poll_cq(cq, 8, wc) == 0 && polled() == 5);
	complete(17, send_name(&qp_req, 0), IBV_WC_SEND, 0);
	complete(17, receive_name(&qp_req, 0) + 1, IBV_WC_RECV, 0);
	complete(17, receive_name(&qp_req, 0), IBV_WC_RECV, 0);
	complete(17, send_name(&qp_req, 2), IBV_WC_SEND, 0);
	CHECK(ibv_poll_cq(cq, 1, wc) == 1 && wc->wr_id == 200 && polled() == 8);
	CHECK(ibv_poll_cq(cq, 8, wc) == 1 && wc->wr_id == 102 && polled() == 9);
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(cq));

	ex = ops.create_cq_ex(context, &attr);
	qp = connected(pd, ibv_cq_ex_to_cq(ex), ibv_cq_ex_to_cq(ex), 17);
	CHECK(!post_send(qp, 100) && !post_receive(qp, 200));
	complete(17, send_name(&qp_req, 0), IBV_WC_SEND, 0);
	complete(17, send_name(&qp_req, 0), IBV_WC_SEND, 0);
	complete(17, receive_name(&qp_req, 0), IBV_WC_RECV, 0);
	CHECK(!ibv_start_poll(ex, NULL) && ex->wr_id == 100 && !ibv_next_poll(ex) && ex->wr_id == 200);
	CHECK(ibv_next_poll(ex) == ENOENT);
	ibv_end_poll(ex);
	CHECK(polled() == 3);
	complete_nothing(send_name(&qp_req, 0));
	CHECK(ibv_start_poll(ex, NULL) == ENOENT && polled() == 7);
	CHECK(!post_send(qp, 101));
	complete(17, send_name(&qp_req, 1), IBV_WC_SEND, 0);
	CHECK(!ibv_start_poll(ex, NULL) && ex->wr_id == 101);
	ibv_end_poll(ex);
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(ibv_cq_ex_to_cq(ex)));
}

static void send_and_receive(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 5, .max_recv_wr = 3, .max_send_sge = 2, .max_recv_sge = 1,
			 .max_inline_data = 60 },
	};
	char text[] = "0123456789";
	struct ibv_sge sge[5] = { { (uintptr_t)text, 4, 9 }, { (uintptr_t)text + 4, 6, 9 }, { 1, 2, 3 } };
	struct ibv_send_wr wr[9] = {}, *bad = NULL;
	struct ibv_recv_wr recv[5] = {}, *bad_recv = NULL;
	struct ibv_qp *qp, *other = connected(pd, cq, cq, 18);
	struct vrnic_create_qp_req other_req = qp_req;
	struct ibv_qp_attr qp_attr;
	struct ibv_wc wc[8];

	attr.cap.max_inline_data = 513;
	CHECK(!ops.create_qp(pd, &attr) && errno == EINVAL);
	attr.cap.max_inline_data = 60;
	attr.qp_type = IBV_QPT_DRIVER;
	CHECK(!ops.create_qp(pd, &attr) && errno == EOPNOTSUPP);
	attr.qp_type = IBV_QPT_RC;
	qp = ops.create_qp(pd, &attr);
	CHECK(qp && attr.cap.max_send_wr == 8 && attr.cap.max_recv_wr == 4);
	CHECK(qp_req.sq.entries == 8 && qp_req.sq.stride == 128 && qp_req.rq.entries == 4 && qp_req.rq.stride == 32);
	CHECK(attr.cap.max_send_sge == 4 && attr.cap.max_inline_data == 64 && attr.cap.max_recv_sge == 1);
	CHECK(!ops.query_qp(qp, &qp_attr, IBV_QP_CAP, &attr));

	for (int i = 0; i < 9; i++) {
		wr[i].wr_id = 500 + i;
		wr[i].opcode = IBV_WR_SEND;
		wr[i].next = i < 8 ? &wr[i + 1] : NULL;
	}
	wr[6].send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(qp, wr, &bad) == EINVAL && bad == wr);
	CHECK(ibv_post_recv(qp, recv, &bad_recv) == EINVAL && bad_recv == recv);
	CHECK(!modify(qp, IBV_QPS_INIT) && ibv_post_send(qp, wr, &bad) == EINVAL);
	CHECK(!ibv_post_recv(qp, recv, &bad_recv));
	to_rts(qp);

	/* As many as there is room for; the rest is refused. */
	CHECK(ibv_post_send(qp, wr, &bad) == ENOMEM && bad == &wr[8] && sent() == 8);
	CHECK(take_bits() && (has_doorbells ? *doorbell == 130 : kernel_rings == 1));
	for (int i = 0; i < 8; i++)
		CHECK(send_name(&qp_req, i) == send_name(&qp_req, 0) + i && send_entry(i)[1] == (i == 6));
	CHECK(ibv_post_send(qp, &wr[8], &bad) == ENOMEM && !take_bits());

	/* Polling a completion also frees the entries of earlier, unsignaled requests. */
	header(qp_req.buf_addr, &qp_req.sq)[16] = 8;
	CHECK(ibv_post_send(qp, &wr[8], &bad) == ENOMEM);
	complete(17, send_name(&qp_req, 6), IBV_WC_SEND, 0);
	CHECK(ibv_post_send(qp, &wr[8], &bad) == ENOMEM && bad == &wr[8] && sent() == 8 && !take_bits());
	CHECK(ibv_poll_cq(cq, 8, wc) == 1 && wc->wr_id == 506 && wc->qp_num == 17);

	/* Every kind of request, byte by byte. */
	memset(wr, 0, sizeof(wr));
	wr[0] = (struct ibv_send_wr){ .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .sg_list = sge, .num_sge = 2,
				      .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE, .imm_data = htobe32(0x0a0b0c0d),
				      .wr.rdma = { .remote_addr = 0x1111, .rkey = 0x2222 }, .next = &wr[1] };
	wr[1] = (struct ibv_send_wr){ .wr_id = 2, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .sg_list = sge, .num_sge = 1,
				      .wr.atomic = { .remote_addr = 3, .compare_add = 4, .swap = 5, .rkey = 6 },
				      .next = &wr[2] };
	wr[2] = (struct ibv_send_wr){ .wr_id = 3, .opcode = IBV_WR_SEND_WITH_INV, .sg_list = sge, .num_sge = 2,
				      .send_flags = IBV_SEND_INLINE | IBV_SEND_SOLICITED,
				      .invalidate_rkey = 0x0a0b0c0d };
	CHECK(!ibv_post_send(qp, wr, &bad) && sent() == 11);
	CHECK(send_entry(8)[0] == 1 && send_entry(8)[1] == (1 | 4) && send_entry(8)[2] == 2);
	CHECK(send_name(&qp_req, 8) == send_name(&qp_req, 7) + 1 && get32(send_entry(8) + 16) == 0x0a0b0c0d);
	CHECK(get64(send_entry(8) + 24) == 0x1111 && get32(send_entry(8) + 32) == 0x2222);
	CHECK(!memcmp(send_entry(8) + 64, sge, 32));
	CHECK(send_entry(9)[0] == 5 && get64(send_entry(9) + 24) == 3 && get32(send_entry(9) + 32) == 6);
	CHECK(get64(send_entry(9) + 40) == 4 && get64(send_entry(9) + 48) == 5);
	CHECK(send_entry(10)[0] == 9 && send_entry(10)[1] == (2 | 8) && get32(send_entry(10) + 4) == 10);
	CHECK(get32(send_entry(10) + 16) == 0x0a0b0c0d && !memcmp(send_entry(10) + 64, text, 10));

	/* Members that a request does not use are ignored, and the entry has 0 instead. */
	wr[1] = (struct ibv_send_wr){ .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = sge, .num_sge = 1,
				      .imm_data = ~0, .wr.atomic = { .compare_add = 4, .swap = ~0ULL } };
	CHECK(!ibv_post_send(qp, &wr[1], &bad) && sent() == 12);
	CHECK(get64(send_entry(11) + 40) == 4 && !get64(send_entry(11) + 48) && !get32(send_entry(11) + 16));

	/* An invalid request is refused, and the requests before it are posted. */
	take_bits();
	wr[1] = (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .sg_list = sge, .num_sge = 5 };
	CHECK(ibv_post_send(qp, wr, &bad) == EINVAL && bad == &wr[1] && sent() == 13 && take_bits());
	wr[1].num_sge = -1;
	CHECK(ibv_post_send(qp, &wr[1], &bad) == EINVAL && sent() == 13 && !take_bits());
	wr[1].num_sge = 0;
	wr[1].opcode = IBV_WR_TSO;
	CHECK(ibv_post_send(qp, &wr[1], &bad) == EINVAL);
	sge[0].length = 65;
	wr[1] = (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .sg_list = sge, .num_sge = 1,
				      .send_flags = IBV_SEND_INLINE };
	CHECK(ibv_post_send(qp, &wr[1], &bad) == EINVAL);
	sge[0].length = UINT32_MAX;
	CHECK(ibv_post_send(qp, &wr[1], &bad) == EINVAL);
	sge[0].length = 4;
	wr[1].opcode = IBV_WR_RDMA_READ;
	CHECK(ibv_post_send(qp, &wr[1], &bad) == EINVAL && sent() == 13);

	/* A polling device gets no doorbell. */
	kernel_rings = 0;
	*doorbell = 0;
	*notify = 1;
	CHECK(!ibv_post_send(qp, wr + 2, &bad) && take_bits() && !*doorbell && !kernel_rings);
	*notify = 0;

	/* The application gets its wr_ids back, whatever their values. */
	CHECK(sent() == 14 && !post_send(qp, 4) && post_send(qp, 5) == ENOMEM);
	complete(17, send_name(&qp_req, 8), IBV_WC_RDMA_WRITE, 0);
	complete(17, send_name(&qp_req, 9), IBV_WC_COMP_SWAP, 0);
	complete(17, send_name(&qp_req, 10), IBV_WC_SEND, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 3 && wc[0].wr_id == 1 && wc[1].wr_id == 2 && wc[2].wr_id == 3);
	CHECK(wc[0].opcode == IBV_WC_RDMA_WRITE && wc[1].opcode == IBV_WC_COMP_SWAP);
	complete(17, send_name(&qp_req, 14), IBV_WC_SEND, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 1 && wc->wr_id == 4);
	for (int i = 0; i < 8; i++)
		CHECK(!post_send(qp, 600 + i));
	CHECK(post_send(qp, 5) == ENOMEM && take_bits());

	/* Receives: one has been posted above, three more fit. */
	for (int i = 0; i < 5; i++)
		recv[i] = (struct ibv_recv_wr){ .wr_id = 900 + i, .next = &recv[i + 1], .sg_list = sge, .num_sge = 1 };
	recv[4].next = NULL;
	recv[0].num_sge = 2;
	CHECK(ibv_post_recv(qp, recv, &bad_recv) == EINVAL && bad_recv == recv);
	CHECK(ibv_post_recv(qp, recv + 1, &bad_recv) == ENOMEM && bad_recv == &recv[4]);
	CHECK(*header(qp_req.buf_addr, &qp_req.rq) == 4 && !take_bits());
	CHECK(receive_name(&qp_req, 2) == receive_name(&qp_req, 0) + 2);
	CHECK(receive_name(&qp_req, 0) >> 32 != send_name(&qp_req, 15) >> 32);
	CHECK(entry(qp_req.buf_addr, &qp_req.rq, 2)[8] == 1);
	CHECK(!memcmp(entry(qp_req.buf_addr, &qp_req.rq, 2) + 16, sge, 16));
	header(qp_req.buf_addr, &qp_req.rq)[16] = 4;
	header(qp_req.buf_addr, &qp_req.rq)[17] = 1;
	recv[4].sg_list = sge;
	CHECK(ibv_post_recv(qp, recv + 4, &bad_recv) == ENOMEM && bad_recv == &recv[4]);
	complete(17, receive_name(&qp_req, 0), IBV_WC_RECV, 0);
	complete(17, receive_name(&qp_req, 1), IBV_WC_RECV, 0);
	CHECK(ibv_post_recv(qp, recv + 4, &bad_recv) == ENOMEM && !take_bits());
	CHECK(ibv_poll_cq(cq, 8, wc) == 2 && !wc[0].wr_id && wc[1].wr_id == 901);
	CHECK(!ibv_post_recv(qp, recv + 4, &bad_recv) && take_bits());
	for (int i = 2; i < 5; i++)
		complete(17, receive_name(&qp_req, i), IBV_WC_RECV, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 3 && wc[0].wr_id == 902 && wc[1].wr_id == 903 && wc[2].wr_id == 904);

	/* Unpolled completions are dropped together with their requests. */
	CHECK(!post_receive(other, 1001));
	complete(17, send_name(&qp_req, 15), IBV_WC_SEND, 0);
	complete(18, receive_name(&other_req, 0), IBV_WC_RECV, 0);

	/* In RESET nothing is accepted, and everything starts over. */
	CHECK(!modify(qp, IBV_QPS_RESET) && !sent() && ibv_post_send(qp, wr, &bad) == EINVAL);
	header(qp_req.buf_addr, &qp_req.sq)[16] = 0;
	header(qp_req.buf_addr, &qp_req.rq)[16] = 0;
	CHECK(ibv_poll_cq(cq, 8, wc) == 1 && wc->wr_id == 1001 && wc->qp_num == 18);
	to_rts(qp);
	CHECK(!ibv_post_send(qp, wr + 2, &bad) && sent() == 1);
	complete(17, send_name(&qp_req, 0), IBV_WC_SEND, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 1 && wc->wr_id == 3);
	fail_next = EINVAL;
	CHECK(modify(qp, IBV_QPS_RESET) == EINVAL);
	fail_next = 0;
	CHECK(!ibv_post_send(qp, wr + 2, &bad) && sent() == 2);

	/* An earlier completion is not taken for that of a new request with the same name. */
	CHECK(!modify(qp, IBV_QPS_RESET));
	to_rts(qp);
	CHECK(!post_send(qp, 699) && !post_receive(qp, 800));
	complete(17, send_name(&qp_req, 0), IBV_WC_SEND, 0);
	complete(17, receive_name(&qp_req, 0), IBV_WC_RECV, 0);
	CHECK(!modify(qp, IBV_QPS_RESET));
	to_rts(qp);
	CHECK(!post_send(qp, 700) && !post_receive(qp, 801) && sent() == 1 && ibv_poll_cq(cq, 8, wc) == 0);
	complete(17, send_name(&qp_req, 0), IBV_WC_SEND, 0);
	complete(17, receive_name(&qp_req, 0), IBV_WC_RECV, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 2 && wc[0].wr_id == 700 && wc[1].wr_id == 801);

	take_bits();
	CHECK(!post_send(qp, 701));
	complete(17, send_name(&qp_req, 1), IBV_WC_SEND, 0);
	CHECK(!ops.destroy_qp(qp) && ibv_poll_cq(cq, 8, wc) == 0);
	CHECK(!post_receive(other, 1002));
	complete(18, receive_name(&other_req, 1), IBV_WC_RECV, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 1 && wc->wr_id == 1002);
	take_bits();
	CHECK(!ops.destroy_qp(other));
}

static void extended_posting(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 2, .max_inline_data = 16 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
	};
	char text[] = "abcdefgh";
	struct ibv_data_buf pieces[2] = { { text, 3 }, { text + 3, 2 } };
	struct ibv_sge sge[2] = { { 1, 2, 3 }, { 4, 5, 6 } };
	struct ibv_qp_ex *ex;
	struct ibv_wc wc[8];
	struct ibv_ah *ah;
	struct ibv_qp *qp;

	CHECK(!ops.create_qp_ex(context, &attr) && errno == EOPNOTSUPP);
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	qp = ops.create_qp_ex(context, &attr);
	CHECK(qp && ((struct verbs_qp *)qp)->comp_mask & VERBS_QP_EX && !qp_req.rq.entries && !attr.cap.max_recv_wr);
	ex = &((struct verbs_qp *)qp)->qp_ex;

	ibv_wr_start(ex);
	ibv_wr_send(ex);
	CHECK(ibv_wr_complete(ex) == EINVAL && !sent());
	to_rts(qp);

	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write_imm(ex, 7, 8, htobe32(9));
	ibv_wr_set_sge_list(ex, 2, sge);
	ex->wr_id = 2;
	ex->wr_flags = 0;
	ibv_wr_send_inv(ex, 10);
	ibv_wr_set_inline_data_list(ex, 2, pieces);
	ex->wr_id = 3;
	ibv_wr_atomic_fetch_add(ex, 11, 12, 13);
	ibv_wr_set_sge(ex, 3, 1, 2);
	CHECK(!sent() && !ibv_wr_complete(ex) && sent() == 3 && take_bits());
	CHECK(send_entry(0)[0] == 1 && send_entry(0)[1] == 1 && send_entry(0)[2] == 2);
	CHECK(get64(send_entry(0) + 24) == 8 && get32(send_entry(0) + 32) == 7 && get32(send_entry(0) + 16) == 9);
	CHECK(!memcmp(send_entry(0) + 64, sge, 32));
	CHECK(send_name(&qp_req, 1) == send_name(&qp_req, 0) + 1 && send_name(&qp_req, 2));
	CHECK(send_entry(1)[0] == 9 && send_entry(1)[1] == 8 && get32(send_entry(1) + 16) == 10);
	CHECK(get32(send_entry(1) + 4) == 5 && !memcmp(send_entry(1) + 64, "abcde", 5));
	CHECK(send_entry(2)[0] == 6 && get64(send_entry(2) + 24) == 12 && get32(send_entry(2) + 32) == 11);
	CHECK(get64(send_entry(2) + 40) == 13 && !memcmp(send_entry(2) + 64, sge, 16));

	/* A group that does not fit, and one that is aborted, leave nothing behind. */
	ibv_wr_start(ex);
	ex->wr_id = 99;
	ibv_wr_rdma_read(ex, 1, 2);
	ibv_wr_atomic_cmp_swp(ex, 1, 2, 3, 4);
	CHECK(ibv_wr_complete(ex) == ENOMEM && sent() == 3 && !take_bits());
	ibv_wr_start(ex);
	ibv_wr_send_imm(ex, 1);
	ibv_wr_abort(ex);
	/* A connection has no checksums of IP packets. */
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_IP_CSUM;
	ibv_wr_send(ex);
	CHECK(ibv_wr_complete(ex) == EINVAL && sent() == 3);
	ex->wr_flags = 0;
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, 1, 2);
	ibv_wr_set_inline_data(ex, text, SIZE_MAX);
	CHECK(ibv_wr_complete(ex) == EINVAL && sent() == 3);
	complete(17, send_name(&qp_req, 2) + 1, IBV_WC_RDMA_READ, 0);
	complete(17, send_name(&qp_req, 0), IBV_WC_RDMA_WRITE, 0);
	complete(17, send_name(&qp_req, 1), IBV_WC_SEND, 0);
	complete(17, send_name(&qp_req, 2), IBV_WC_FETCH_ADD, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 3 && wc[0].wr_id == 1 && wc[1].wr_id == 2 && wc[2].wr_id == 3);

	/* Now there is room for as many as the ring has entries. */
	ibv_wr_start(ex);
	for (ex->wr_id = 4; ex->wr_id < 8; ex->wr_id++)
		ibv_wr_send(ex);
	CHECK(!ibv_wr_complete(ex) && sent() == 7 && take_bits());
	complete(17, send_name(&qp_req, 6), IBV_WC_SEND, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 1 && wc->wr_id == 7);
	CHECK(!ops.destroy_qp(qp));

	attr.qp_type = IBV_QPT_UD;
	attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	CHECK(!ops.create_qp_ex(context, &attr) && errno == EOPNOTSUPP);
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	qp = ops.create_qp_ex(context, &attr);
	ah = ops.create_ah(pd, &(struct ibv_ah_attr){});
	CHECK(qp && ah);
	to_rts(qp);
	ex = &((struct verbs_qp *)qp)->qp_ex;
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, 33, 44);
	CHECK(!ibv_wr_complete(ex) && send_entry(0)[24] == 0xa5 && send_entry(0)[55] == 0xa5);
	CHECK(get32(send_entry(0) + 56) == 33 && get32(send_entry(0) + 60) == 44);
	{
		struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .wr.ud = { ah, 35, 46 } };

		CHECK(!ibv_post_send(qp, &wr, &bad) && send_entry(1)[24] == 0xa5);
		CHECK(get32(send_entry(1) + 56) == 35 && get32(send_entry(1) + 60) == 46);
		wr.send_flags = IBV_SEND_IP_CSUM;
		CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
		wr.send_flags = 0;
		wr.opcode = IBV_WR_RDMA_WRITE;
		CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	}
	take_bits();
	CHECK(!ops.destroy_ah(ah) && !ops.destroy_qp(qp));
}

static void placement(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE,
	};
	struct ibv_qp *qp = ops.create_qp_ex(pd->context, &attr);
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_FLUSH };
	/* At an odd address: the verb does not require alignment. */
	struct { char odd; char value[8]; } __attribute__((packed)) word = { 0, "12345678" };
	struct ibv_qp_ex *ex;
	struct ibv_wc wc[2];

	CHECK(qp);
	to_rts(qp);
	ex = &((struct verbs_qp *)qp)->qp_ex;
	ibv_wr_start(ex);
	ex->wr_id = 21;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_flush(ex, 0x55, 0x1122334455667788, 0x99, IBV_FLUSH_GLOBAL, IBV_FLUSH_MR);
	ex->wr_id = 22;
	ibv_wr_atomic_write(ex, 0x66, 0x8877665544332210, word.value);
	CHECK(!ibv_wr_complete(ex) && sent() == 2);
	CHECK(send_entry(0)[0] == 14 && send_entry(0)[1] == 1 && get64(send_entry(0) + 24) == 0x1122334455667788);
	CHECK(get32(send_entry(0) + 32) == 0x55 && get32(send_entry(0) + 36) == 0x99);
	CHECK(send_entry(0)[40] == 1 && send_entry(0)[41] == 1 && send_entry(0)[42] == 0);
	CHECK(send_entry(1)[0] == 15 && get64(send_entry(1) + 24) == 0x8877665544332210);
	CHECK(get32(send_entry(1) + 32) == 0x66 && !memcmp(send_entry(1) + 48, "12345678", 8));
	/* Local memory, this length and the other posting interface are invalid. */
	ibv_wr_start(ex);
	ibv_wr_flush(ex, 1, 2, 3, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
	ibv_wr_set_sge(ex, 1, 2, 3);
	CHECK(ibv_wr_complete(ex) == EINVAL && sent() == 2);
	ibv_wr_start(ex);
	ibv_wr_flush(ex, 1, 2, 1ull << 32, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
	CHECK(ibv_wr_complete(ex) == EINVAL && sent() == 2);
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && sent() == 2);
	complete(17, send_name(&qp_req, 0), IBV_WC_FLUSH, 0);
	complete(17, send_name(&qp_req, 1), IBV_WC_ATOMIC_WRITE, 0);
	CHECK(ibv_poll_cq(cq, 2, wc) == 2 && wc[0].wr_id == 21 && wc[0].opcode == IBV_WC_FLUSH);
	CHECK(wc[1].wr_id == 22 && wc[1].opcode == IBV_WC_ATOMIC_WRITE);
	take_bits();
	CHECK(!ops.destroy_qp(qp));
}

/* The kernel knows which flags are for which type. */
static void creation_flags(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = pd,
	};
	static const uint32_t flags[] = { IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_CREATE_SCATTER_FCS,
					  IBV_QP_CREATE_CVLAN_STRIPPING };

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		struct ibv_qp *qp;

		attr.create_flags = flags[i];
		qp = ops.create_qp_ex(pd->context, &attr);
		CHECK(qp && create_flags == flags[i]);
		CHECK(!ops.destroy_qp(qp));
	}
}

static void windows(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
	};
	struct ibv_qp *qp = ops.create_qp_ex(pd->context, &attr);
	struct ibv_mw *mw = ops.alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mr *mr = ops.reg_mr(pd, &attr, 8, 0, 0);
	struct ibv_mw_bind bind = { .wr_id = 9, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad, wr = { .wr_id = 10, .opcode = IBV_WR_BIND_MW };
	struct ibv_sge sge = { 1, 2, 3 };
	struct ibv_qp_ex *ex;
	struct ibv_wc wc[8];

	/* An explicit 0 is valid, and so are the flags of which the kernel knows to what they belong. */
	CHECK(!create_flags);
	attr.create_flags = IBV_QP_CREATE_PCI_WRITE_END_PADDING;
	CHECK(!ops.create_qp_ex(pd->context, &attr) && errno == EOPNOTSUPP);
	CHECK(attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr.cap.max_send_wr == 8);
	CHECK(qp && mw && mr && mw->type == IBV_MW_TYPE_1 && mw->rkey == 0x112233ff);
	to_rts(qp);
	/* The next key differs only in the lowest byte. */
	bind.bind_info = (struct ibv_mw_bind_info){ mr, 1, 2, 3 };
	CHECK(!ops.bind_mw(qp, mw, &bind) && sent() == 1 && mw->rkey == 0x11223300);
	CHECK(send_entry(0)[0] == 8 && send_entry(0)[1] == 1);
	CHECK(get64(send_entry(0) + 24) == 1 && get64(send_entry(0) + 32) == 2);
	CHECK(get32(send_entry(0) + 40) == 0x11223300 && get32(send_entry(0) + 44) == 5 && get32(send_entry(0) + 48) == 3);
	bind.bind_info = (struct ibv_mw_bind_info){};
	CHECK(!ops.bind_mw(qp, mw, &bind) && mw->rkey == 0x11223301 && !get32(send_entry(1) + 44));

	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = 0xffffff77;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, 4, 5, 6 };
	/* Where the application chooses the key, it keeps account of it. */
	CHECK(!ibv_post_send(qp, &wr, &bad) && mw->rkey == 0x11223301 && get32(send_entry(2) + 40) == 0x11223377);
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.bind_mw.rkey = 0;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && mw->rkey == 0x11223301 && sent() == 3);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = 0x11223377 };
	CHECK(!ibv_post_send(qp, &wr, &bad) && send_entry(3)[0] == 7 && get32(send_entry(3) + 16) == 0x11223377);
	wr.opcode = 0x20;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && sent() == 4);

	ex = &((struct verbs_qp *)qp)->qp_ex;
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, mw, 0x80, &(struct ibv_mw_bind_info){ mr, 7, 8, 9 });
	ibv_wr_local_inv(ex, 0x11223380);
	CHECK(!ibv_wr_complete(ex) && sent() == 6 && mw->rkey == 0x11223301);
	CHECK(send_entry(4)[0] == 8 && get32(send_entry(4) + 40) == 0x11223380 && get64(send_entry(4) + 32) == 8);
	CHECK(send_entry(5)[0] == 7 && get32(send_entry(5) + 16) == 0x11223380);
	ibv_wr_start(ex);
	ibv_wr_local_inv(ex, 1);
	ibv_wr_set_sge(ex, 1, 2, 3);
	CHECK(ibv_wr_complete(ex) == EINVAL && sent() == 6);
	for (int i = 0; i < 3; i++)
		complete(17, send_name(&qp_req, i), IBV_WC_BIND_MW, 0);
	CHECK(ibv_poll_cq(cq, 8, wc) == 3 && wc[0].wr_id == 9 && wc[1].wr_id == 9 && wc[2].wr_id == 10);
	take_bits();
	CHECK(!ops.dereg_mr((struct verbs_mr *)mr) && !ops.dealloc_mw(mw) && !ops.destroy_qp(qp));
	fail_next = ENOMEM;
	CHECK(!ops.alloc_mw(pd, IBV_MW_TYPE_2) && errno == ENOMEM);
	fail_next = 0;
}

static int post_shared(struct ibv_srq *srq, uint64_t wr_id)
{
	struct ibv_sge sge = { .addr = wr_id, .length = 7, .lkey = 5 };
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };

	return ibv_post_srq_recv(srq, &wr, &bad);
}

/* Takes the next receive, as the device does, and returns its name. */
static uint64_t take_shared(uint64_t wr_id)
{
	uint32_t *indices = header(srq_req.buf_addr, &srq_req.ring), index = indices[16];
	uint8_t *at = entry(srq_req.buf_addr, &srq_req.ring, index);

	CHECK(index != indices[0]);
	CHECK(*(uint16_t *)(at + 8) == 1 && get64(at + 16) == wr_id && get32(at + 24) == 7 && get32(at + 28) == 5);
	indices[16] = index + 1;
	return get64(at);
}

static void shared_receives(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 3, .max_sge = 1 } };
	struct ibv_qp_init_attr qp_attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_srq_attr change = { .max_wr = 16, .srq_limit = 2 };
	struct ibv_cq *cq = ops.create_cq(context, 8, NULL, 0);
	struct vrnic_create_srq_req old;
	struct ibv_qp *qp[2];
	struct ibv_srq *srq;
	uint64_t names[4];
	struct ibv_wc wc[4];

	attr.attr.max_wr = 0;
	CHECK(!ops.create_srq(pd, &attr) && errno == EINVAL);
	attr.attr.max_wr = 3;
	fail_next = ENOSPC;
	CHECK(!ops.create_srq(pd, &attr) && errno == ENOSPC);
	fail_next = 0;
	srq = ops.create_srq(pd, &attr);
	CHECK(srq && srq_req.ring.entries == 4 && attr.attr.max_wr == 4 && attr.attr.max_sge >= 1);

	/* Two queue pairs without receive rings of their own. */
	qp_attr.send_cq = cq;
	qp_attr.recv_cq = cq;
	qp_attr.srq = srq;
	for (int i = 0; i < 2; i++) {
		next_qpn = 17 + i;
		qp[i] = ops.create_qp(pd, &qp_attr);
		CHECK(qp[i] && !qp_req.rq.entries && !qp_req.rq.stride && qp_req.sq.entries == 8);
		to_rts(qp[i]);
		qp_attr.cap.max_send_wr = 8;
		qp_attr.cap.max_recv_wr = 4;
		qp_attr.cap.max_recv_sge = 1;
	}
	next_qpn = 17;
	CHECK(post_receive(qp[0], 1));

	/* Completions come in any order, and an entry is free once it has been taken. */
	for (int i = 0; i < 4; i++)
		CHECK(!post_shared(srq, 500 + i));
	CHECK(post_shared(srq, 504) == ENOMEM);
	for (int i = 0; i < 4; i++)
		names[i] = take_shared(500 + i);
	CHECK(!post_shared(srq, 504) && !post_shared(srq, 505));
	complete(18, names[2], IBV_WC_RECV, 0);
	complete(17, names[0], IBV_WC_RECV, 0);
	complete(18, names[3], IBV_WC_RECV, 0);
	CHECK(ibv_poll_cq(cq, 4, wc) == 3 && wc[0].wr_id == 502 && wc[1].wr_id == 500 && wc[2].wr_id == 503);
	CHECK(wc[0].qp_num == 18 && wc[1].qp_num == 17 && wc[0].opcode == IBV_WC_RECV);
	/* A receive does not complete twice. */
	complete(18, names[2], IBV_WC_RECV, 0);
	CHECK(ibv_poll_cq(cq, 4, wc) == 0);

	/* The remaining receives move to a larger ring, or stay if that fails. */
	old = srq_req;
	fail_next = EINVAL;
	CHECK(ops.modify_srq(srq, &change, IBV_SRQ_MAX_WR) == EINVAL);
	fail_next = 0;
	CHECK(srq_req.buf_addr == old.buf_addr && !post_shared(srq, 506));
	CHECK(!ops.modify_srq(srq, &change, IBV_SRQ_LIMIT) && srq_req.buf_addr == old.buf_addr);
	CHECK(!ops.modify_srq(srq, &change, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
	CHECK(srq_req.buf_addr != old.buf_addr && srq_req.ring.entries == 16);
	header(srq_req.buf_addr, &srq_req.ring)[16] = 4;
	for (int i = 507; i < 517; i++)
		CHECK(!post_shared(srq, i));
	CHECK(!ops.query_srq(srq, &change) && change.srq_limit == 3);
	for (int i = 504; i < 517; i++) {
		complete(17, take_shared(i), IBV_WC_RECV, 0);
		CHECK(ibv_poll_cq(cq, 4, wc) == 1 && wc->wr_id == (unsigned int)i);
	}

	/* A completion of a destroyed queue pair is not taken for another's. */
	CHECK(!post_shared(srq, 520) && !post_shared(srq, 521));
	complete(18, take_shared(520), IBV_WC_RECV, 0);
	complete(17, take_shared(521), IBV_WC_RECV, 0);
	CHECK(!ops.destroy_qp(qp[1]));
	CHECK(ibv_poll_cq(cq, 4, wc) == 1 && wc->wr_id == 521);
	take_bits();
	CHECK(!ops.destroy_qp(qp[0]));
	fail_next = EBUSY;
	CHECK(ops.destroy_srq(srq) == EBUSY);
	fail_next = 0;
	CHECK(!ops.destroy_srq(srq) && !ops.destroy_cq(cq));
}

/* Resizing keeps unpolled completions and the request for an event. */
/* XRC: each end has only one queue, and receives complete on the completion queue of their shared receive queue. */
static void extended_connections(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_xrcd_init_attr domain = { .fd = 5 };
	struct ibv_cq *cq = ops.create_cq(context, 8, NULL, 0);
	struct ibv_srq_init_attr_ex srq_attr = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
		.cq = cq,
	};
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.cap = { .max_send_wr = 8, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_open_attr open = { .qp_num = 44 };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .qp_type.xrc.remote_srqn = 0x123456 };
	struct ibv_qp *target, *opened, *initiator;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp_ex *ex;
	uint32_t number;
	struct ibv_wc wc;

	fail_next = EACCES;
	CHECK(!ops.open_xrcd(context, &domain) && errno == EACCES);
	fail_next = 0;
	xrcd = ops.open_xrcd(context, &domain);
	CHECK(xrcd && xrcd->context == context);

	CHECK(!ops.create_srq_ex(context, &srq_attr) && errno == EINVAL);
	srq_attr.xrcd = xrcd;
	srq_attr.srq_type = IBV_SRQT_TM;
	CHECK(!ops.create_srq_ex(context, &srq_attr) && errno == EOPNOTSUPP);
	srq_attr.srq_type = IBV_SRQT_XRC;
	srq = ops.create_srq_ex(context, &srq_attr);
	CHECK(srq && srq_req.ring.entries == 4 && !ops.get_srq_num(srq, &number) && number == 10);

	CHECK(!ops.create_qp_ex(context, &attr) && errno == EINVAL);
	attr.xrcd = xrcd;
	target = ops.create_qp_ex(context, &attr);
	CHECK(target && !qp_req.sq.entries && !qp_req.rq.entries);
	opened = ops.open_qp(context, &open);
	CHECK(opened && opened->qp_num == 44);
	to_rts(opened);
	CHECK(post_send(opened, 1) && post_receive(opened, 1));

	/* A target QP has no completions of its own. */
	CHECK(!post_shared(srq, 600));
	complete(44, take_shared(600), IBV_WC_RECV, 0);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 600 && wc.qp_num == 44);
	CHECK(!post_shared(srq, 601));
	complete(44, take_shared(601), IBV_WC_RECV, 0);
	CHECK(!modify(opened, IBV_QPS_RESET) && !ops.destroy_qp(opened) && !ops.destroy_qp(target));
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 601);

	attr.qp_type = IBV_QPT_XRC_SEND;
	attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ;
	attr.pd = pd;
	attr.cap.max_send_wr = 8;
	attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = 1;
	CHECK(!ops.create_qp_ex(context, &attr) && errno == EINVAL);
	attr.send_cq = cq;
	initiator = ops.create_qp_ex(context, &attr);
	CHECK(initiator && qp_req.sq.entries == 8 && !qp_req.rq.entries);
	to_rts(initiator);
	CHECK(!ibv_post_send(initiator, &wr, &bad) && get32(send_entry(0) + 60) == 0x123456);
	ex = (struct ibv_qp_ex *)initiator;
	ex->wr_start(ex);
	ex->wr_id = 9;
	ex->wr_rdma_read(ex, 7, 0x1000);
	ex->wr_set_xrc_srqn(ex, 11);
	CHECK(!ex->wr_complete(ex) && get32(send_entry(1) + 60) == 11 && get64(send_entry(1) + 24) == 0x1000);
	take_bits();

	/* Unpolled completions are dropped with their queue. */
	CHECK(!post_shared(srq, 602));
	complete(44, take_shared(602), IBV_WC_RECV, 0);
	CHECK(!ops.destroy_srq(srq) && !ibv_poll_cq(cq, 1, &wc));
	CHECK(!ops.destroy_qp(initiator));
	fail_next = EBUSY;
	CHECK(ops.close_xrcd(xrcd) == EBUSY);
	fail_next = 0;
	CHECK(!ops.close_xrcd(xrcd) && !ops.destroy_cq(cq));
}

static void resized_completions(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 3, 20 } };
	struct ibv_cq_init_attr_ex attr = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *ex = ops.create_cq_ex(context, &attr);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ex);
	struct vrnic_create_cq_req old = cq_req;
	struct ibv_qp *qp = connected(pd, cq, cq, 17);
	struct ibv_wc wc[4];

	for (int i = 0; i < 5; i++)
		CHECK(!post_send(qp, 600 + i));
	for (int i = 0; i < 3; i++)
		complete(17, send_name(&qp_req, i), IBV_WC_SEND, 0);
	CHECK(ibv_poll_cq(cq, 1, wc) == 1 && wc->wr_id == 600 && !ibv_req_notify_cq(cq, 0));

	CHECK(ops.resize_cq(cq, 0) == EINVAL && ops.resize_cq(cq, -1) == EINVAL && ops.resize_cq(cq, 1 << 21) == EINVAL);
	fail_next = EINVAL;
	CHECK(ops.resize_cq(cq, 1) == EINVAL && ops.modify_cq(cq, &moderation) == EINVAL);
	fail_next = 0;
	CHECK(cq_req.buf_addr == old.buf_addr && !ops.modify_cq(cq, &moderation));
	CHECK(!ibv_start_poll(ex, NULL) && ex->wr_id == 601);
	ibv_end_poll(ex);

	CHECK(!ops.resize_cq(cq, 10) && cq->cqe == 16 && cq_req.ring.entries == 16 && cq_req.buf_addr != old.buf_addr);
	CHECK(polled() == 2 && header(cq_req.buf_addr, &cq_req.ring)[1] == (1 << 2 | 1));
	complete(17, send_name(&qp_req, 3), IBV_WC_SEND, 0);
	CHECK(!ops.resize_cq(cq, 2) && cq->cqe == 2 && polled() == 2);
	CHECK(ibv_poll_cq(cq, 4, wc) == 2 && wc[0].wr_id == 602 && wc[1].wr_id == 603 && polled() == 4);
	complete(17, send_name(&qp_req, 4), IBV_WC_SEND, 0);
	CHECK(!ibv_start_poll(ex, NULL) && ex->wr_id == 604 && ibv_next_poll(ex) == ENOENT);
	ibv_end_poll(ex);
	take_bits();
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(cq));
}

/* Reports the device as gone, as the kernel does, so that posted requests are flushed. */
static void set_failed(int failed)
{
	__atomic_store_n(notify + 48, failed, __ATOMIC_RELEASE);
}

/* Requests still to be flushed, by queue: the wr_id of request n of queue q is 100 * q + n. */
static struct {
	uint32_t next, end, qpn;
	enum ibv_wc_opcode opcode;
} expected[5];

static void expect(uint32_t queue, uint32_t next, uint32_t end, uint32_t qpn, enum ibv_wc_opcode opcode)
{
	expected[queue].next = next;
	expected[queue].end = end;
	expected[queue].qpn = qpn;
	expected[queue].opcode = opcode;
}

static void flushed(uint64_t wr_id, enum ibv_wc_status status, enum ibv_wc_opcode opcode, uint32_t qpn)
{
	uint32_t queue = wr_id / 100;

	CHECK(queue < 5 && expected[queue].next < expected[queue].end && wr_id % 100 == expected[queue].next);
	CHECK(status == IBV_WC_WR_FLUSH_ERR && opcode == expected[queue].opcode && qpn == expected[queue].qpn);
	expected[queue].next++;
}

static int all_flushed(void)
{
	for (int i = 0; i < 5; i++)
		if (expected[i].next != expected[i].end)
			return 0;
	return 1;
}

static void failure(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *ex = ops.create_cq_ex(context, &attr);
	struct vrnic_create_cq_req ex_req = cq_req;
	struct ibv_cq *cq = ops.create_cq(context, 4, NULL, 0);
	struct vrnic_create_qp_req req[2];
	struct ibv_qp *qp[2];
	struct ibv_wc wc[3];
	int count;

	/* One queue pair sends to the first CQ and receives on the second, another does the opposite. */
	qp[0] = connected(pd, cq, ibv_cq_ex_to_cq(ex), 17);
	req[0] = qp_req;
	qp[1] = connected(pd, ibv_cq_ex_to_cq(ex), cq, 18);
	req[1] = qp_req;
	for (int i = 0; i < 8; i++)
		CHECK(!post_send(qp[0], 100 + i) && !post_send(qp[1], 200 + i));
	for (int i = 0; i < 4; i++)
		CHECK(!post_receive(qp[0], 300 + i) && !post_receive(qp[1], 400 + i));
	CHECK(post_send(qp[0], 108) == ENOMEM && post_receive(qp[1], 404) == ENOMEM);

	/* Written completions come first; unsignaled requests before them do not complete. */
	complete(17, send_name(&req[0], 0), IBV_WC_SEND, 0);
	CHECK(ibv_poll_cq(cq, 3, wc) == 1 && wc->wr_id == 100 && ibv_poll_cq(cq, 3, wc) == 0);
	CHECK(ibv_start_poll(ex, NULL) == ENOENT);
	complete(17, send_name(&req[0], 0), IBV_WC_SEND, 0);
	complete(18, receive_name(&req[1], 0), IBV_WC_RECV, 0);
	complete(17, send_name(&req[0], 2), IBV_WC_SEND, 0);
	set_failed(1);
	expect(1, 3, 8, 17, IBV_WC_SEND);
	expect(4, 1, 4, 18, IBV_WC_RECV);
	CHECK(ibv_poll_cq(cq, 3, wc) == 3 && wc[0].wr_id == 400 && wc[1].wr_id == 102);
	CHECK(wc[0].status == IBV_WC_SUCCESS && wc[1].status == IBV_WC_SUCCESS);
	flushed(wc[2].wr_id, wc[2].status, wc[2].opcode, wc[2].qp_num);
	while ((count = ibv_poll_cq(cq, 3, wc)))
		for (int i = 0; i < count; i++)
			flushed(wc[i].wr_id, wc[i].status, wc[i].opcode, wc[i].qp_num);
	CHECK(all_flushed() && ibv_poll_cq(cq, 3, wc) == 0 && polled() == 4);

	/* The other completion queue still has all its completions. */
	cq_req = ex_req;
	completions = 0;
	complete(17, receive_name(&req[0], 0), IBV_WC_RECV, 0);
	complete(17, receive_name(&req[0], 0), IBV_WC_RECV, 0);
	expect(2, 0, 8, 18, IBV_WC_SEND);
	expect(3, 1, 4, 17, IBV_WC_RECV);
	CHECK(!ibv_start_poll(ex, NULL) && ex->wr_id == 300 && ex->status == IBV_WC_SUCCESS);
	for (int i = 0; i < 4; i++) {
		CHECK(!ibv_next_poll(ex));
		flushed(ex->wr_id, ex->status, ibv_wc_read_opcode(ex), ibv_wc_read_qp_num(ex));
	}
	ibv_end_poll(ex);
	CHECK(!ibv_start_poll(ex, NULL));
	do {
		flushed(ex->wr_id, ex->status, ibv_wc_read_opcode(ex), ibv_wc_read_qp_num(ex));
	} while (!ibv_next_poll(ex));
	ibv_end_poll(ex);
	CHECK(all_flushed() && ibv_start_poll(ex, NULL) == ENOENT && polled() == 2);

	/* All entries are free again, and requests posted now are flushed as well. */
	for (int i = 10; i < 18; i++)
		CHECK(!post_send(qp[0], 100 + i) && !post_send(qp[1], 200 + i));
	for (int i = 10; i < 14; i++)
		CHECK(!post_receive(qp[0], 300 + i) && !post_receive(qp[1], 400 + i));
	CHECK(post_send(qp[0], 118) == ENOMEM && post_receive(qp[1], 414) == ENOMEM);
	expect(1, 10, 18, 17, IBV_WC_SEND);
	expect(4, 10, 14, 18, IBV_WC_RECV);
	while (ibv_poll_cq(cq, 1, wc))
		flushed(wc->wr_id, wc->status, wc->opcode, wc->qp_num);
	CHECK(all_flushed());
	expect(2, 10, 18, 18, IBV_WC_SEND);
	expect(3, 10, 14, 17, IBV_WC_RECV);
	while (!ibv_start_poll(ex, NULL)) {
		flushed(ex->wr_id, ex->status, ibv_wc_read_opcode(ex), ibv_wc_read_qp_num(ex));
		ibv_end_poll(ex);
	}
	CHECK(all_flushed());

	/* A queue pair that was reset or destroyed has nothing to flush. */
	CHECK(!post_send(qp[0], 120) && !post_receive(qp[0], 320) && !modify(qp[0], IBV_QPS_RESET));
	CHECK(!post_send(qp[1], 220) && !post_receive(qp[1], 420) && !ops.destroy_qp(qp[1]));
	CHECK(ibv_poll_cq(cq, 3, wc) == 0 && ibv_start_poll(ex, NULL) == ENOENT);
	set_failed(0);
	take_bits();
	CHECK(!ops.destroy_qp(qp[0]) && !ops.destroy_cq(cq) && !ops.destroy_cq(ibv_cq_ex_to_cq(ex)));
}

/* An allocator of the application: how much it has allocated, and what it is to return. */
static struct {
	void *pd, *answer;
	int given, returned;
	unsigned int kinds;
} lent;

static void *lend(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
	void *memory;

	CHECK(pd == lent.pd && context == &lent && size % 4096 == 0 && alignment == 4096);
	CHECK(type >> 32 == VRNIC_DRIVER_ID);
	if (lent.answer != &lent)
		return lent.answer;
	lent.kinds |= 1 << (uint32_t)type;
	lent.given++;
	CHECK(!posix_memalign(&memory, alignment, size));
	memset(memory, 0xff, size);
	return memory;
}

static void take_back(struct ibv_pd *pd, void *context, void *memory, uint64_t type)
{
	CHECK(pd == lent.pd && context == &lent && type >> 32 == VRNIC_DRIVER_ID);
	if (!((uintptr_t)memory % 4096))
		free(memory);
	lent.returned++;
}

static void allocators(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_parent_domain_init_attr attr = {
		.pd = pd,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = lend,
		.pd_context = &lent,
	};
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd };
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 3, .max_sge = 1 } };
	struct ibv_srq_attr more = { .max_wr = 9 };
	struct ibv_pd *parent;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_wc wc;

	/* Half an allocator is invalid, and a completion queue needs a parent domain. */
	CHECK(!ops.alloc_parent_domain(context, &attr) && errno == EINVAL);
	CHECK(!ops.create_cq_ex(context, &cq_attr) && errno == EINVAL);
	attr.free = take_back;
	parent = ops.alloc_parent_domain(context, &attr);
	lent.pd = parent;
	lent.answer = &lent;
	cq_attr.parent_domain = parent;
	cq = ibv_cq_ex_to_cq(ops.create_cq_ex(context, &cq_attr));
	srq = ops.create_srq(parent, &srq_attr);
	CHECK(cq && srq && lent.given == 2 && ops.dealloc_pd(parent) == EBUSY);
	qp = connected(parent, cq, cq, 17);
	CHECK(lent.given == 3 && lent.kinds == 0xe && !lent.returned);
	/* The memory has been zeroed, or else this would find a completion. */
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0 && !post_send(qp, 700));
	complete(17, send_name(&qp_req, 0), IBV_WC_SEND, 0);
	/* Other rings use the allocator, too. */
	CHECK(!ops.resize_cq(cq, 8) && !ops.modify_srq(srq, &more, IBV_SRQ_MAX_WR));
	CHECK(lent.given == 5 && lent.returned == 2 && ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 700);
	lent.answer = NULL;
	CHECK(ops.resize_cq(cq, 16) == ENOMEM && !ops.create_srq(parent, &srq_attr) && errno == ENOMEM);
	lent.answer = (char *)&lent + 1;
	CHECK(ops.resize_cq(cq, 16) == EINVAL && lent.returned == 3);
	lent.answer = IBV_ALLOCATOR_USE_DEFAULT;
	CHECK(!ops.resize_cq(cq, 16) && lent.given == 5 && lent.returned == 4);
	CHECK(!ops.resize_cq(cq, 4) && lent.returned == 4);
	take_bits();
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_srq(srq) && lent.returned == 6);
	CHECK(ops.dealloc_pd(parent) == EBUSY && !ops.destroy_cq(cq) && lent.returned == 6);
	CHECK(!ops.dealloc_pd(parent));
	memset(&lent, 0, sizeof(lent));
}

static void domains(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_td_init_attr td_attr = {};
	struct ibv_td *td = ops.alloc_td(context, &td_attr);
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = td };
	struct ibv_pd *parent = ops.alloc_parent_domain(context, &attr);
	struct ibv_sge sge = {};
	struct ibv_mr *mr;

	CHECK(td && parent && parent->handle == 77 && parent->context == context);
	CHECK(ops.dealloc_pd(pd) == EBUSY && ops.dealloc_td(td) == EBUSY);
	CHECK(!ops.dealloc_pd(parent) && !ops.dealloc_td(td));
	mr = ops.reg_mr(pd, &td, 8, 0, 0);
	CHECK(mr && mr->lkey == 5);
	sge.lkey = mr->lkey;
	CHECK(!ops.advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	CHECK(!ops.rereg_mr((struct verbs_mr *)mr, 7, pd, &td, 16, 1) && mr->lkey == 6);
	CHECK(!ops.dereg_mr((struct verbs_mr *)mr));

	/* A region that only the provider knows. */
	mr = ops.alloc_null_mr(pd);
	CHECK(mr && mr->lkey == 2 && mr->pd == pd && mr->context == pd->context);
	CHECK(ops.rereg_mr((struct verbs_mr *)mr, 7, pd, &td, 16, 1) == EINVAL);
	deregistered = 0;
	CHECK(!ops.dereg_mr((struct verbs_mr *)mr) && !deregistered);

#if RELEASE >= 59
	struct ibv_mr_init_attr init = { .length = 24, .comp_mask = IBV_REG_MR_MASK_ADDR, .addr = &td };

	mr = ops.reg_mr_ex(pd, &init);
	CHECK(mr && mr->lkey == 14 && !ops.dereg_mr((struct verbs_mr *)mr));
	fail_next = ENOMEM;
	CHECK(!ops.reg_mr_ex(pd, &init) && errno == ENOMEM);
	fail_next = 0;

	struct ibv_dmah_init_attr hints = { .comp_mask = IBV_DMAH_INIT_ATTR_MASK_PH, .ph = 3 };
	struct ibv_dmah *handle = ops.alloc_dmah(context, &hints);

	CHECK(handle && handle->context == context);
	fail_next = EBUSY;
	CHECK(ops.dealloc_dmah(handle) == EBUSY);
	CHECK(!ops.alloc_dmah(context, &hints) && errno == EBUSY);
	fail_next = 0;
	CHECK(!ops.dealloc_dmah(handle));
#endif
#if LEVEL >= 16
	uint64_t speed = 0;

	CHECK(!ops.query_port_speed(context, 1, &speed) && speed == 400);
	CHECK(ops.query_port_speed(context, 2, &speed) == EINVAL);
#endif
	mr = ops.reg_dmabuf_mr(pd, 4096, 8, 0x10000, 3, 1);
	CHECK(mr && mr->lkey == 9);
	CHECK(!ops.dereg_mr((struct verbs_mr *)mr));
	fail_next = EBADF;
	errno = 0;
	CHECK(!ops.reg_dmabuf_mr(pd, 4096, 8, 0x10000, 3, 1) && errno == EBADF);
	fail_next = EFAULT;
	CHECK(!ops.reg_mr(pd, &td, 8, 0, 0) && errno == EFAULT);
	fail_next = 0;
}

/* Device memory is mapped, and copied in words. */
static void device_memory(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_alloc_dm_attr attr = { .length = 100, .log_align_req = 6, .comp_mask = 1 };
	uint32_t from[25], to[25];
	struct ibv_dm *dm, *other;
	struct ibv_mr *mr;
	unsigned int i;

	freed_dms = 0;
	CHECK(!ops.alloc_dm(context, &attr) && errno == EINVAL);
	attr.comp_mask = 0;
	fail_next = ENOMEM;
	CHECK(!ops.alloc_dm(context, &attr) && errno == ENOMEM);
	fail_next = 0;
	dm = ops.alloc_dm(context, &attr);
	CHECK(dm && dm->context == context && dm->handle == 12 && dm->comp_mask == IBV_DM_MASK_HANDLE);
	CHECK(!ops.import_dm(context, 13) && errno == ENOENT);
	other = ops.import_dm(context, 12);
	CHECK(other && other->context == context && other->handle == 12 && other->comp_mask == IBV_DM_MASK_HANDLE);

	for (i = 0; i < 25; i++)
		from[i] = 0x01010101 * i;
	CHECK(!ibv_memcpy_to_dm(dm, 0, from, 100) && !ibv_memcpy_from_dm(to, other, 0, 100));
	CHECK(!memcmp(from, to, 100));
	/* At any alignment in the program's memory. */
	CHECK(!ibv_memcpy_to_dm(dm, 8, (char *)from + 3, 4) && !ibv_memcpy_from_dm((char *)to + 1, dm, 8, 4));
	CHECK(!memcmp((char *)from + 3, (char *)to + 1, 4));
	CHECK(!ibv_memcpy_from_dm(to, other, 12, 4) && to[0] == from[3]);
	CHECK(ibv_memcpy_to_dm(dm, 100, from, 4) == EFAULT && ibv_memcpy_from_dm(to, dm, 4, 100) == EFAULT);
	CHECK(ibv_memcpy_to_dm(dm, UINT64_MAX - 3, from, 4) == EFAULT);
	CHECK(ibv_memcpy_to_dm(dm, 2, from, 4) == EINVAL && ibv_memcpy_from_dm(to, dm, 4, 3) == EINVAL);
	CHECK(!ibv_memcpy_to_dm(dm, 100, from, 0));

	mr = ops.reg_dm_mr(pd, dm, 8, 16, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && mr->lkey == 13 && !ops.dereg_mr((struct verbs_mr *)mr));
	ops.unimport_dm(other);
	CHECK(!freed_dms);
	fail_next = EBUSY;
	CHECK(ops.free_dm(dm) == EBUSY);
	fail_next = 0;
	CHECK(!ops.free_dm(dm) && freed_dms == 1);
}

/* The kernel reads all counters, of which the program has chosen some. */
static void counters(struct ibv_context *context)
{
	struct ibv_counters_init_attr attr = { .comp_mask = 1 };
	struct ibv_counter_attach_attr point = { .counter_desc = IBV_COUNTER_BYTES, .index = 2 };
	uint64_t values[4] = { 1, 1, 1, 1 };
	uint32_t flags = IBV_READ_COUNTERS_ATTR_PREFER_CACHED;
	struct {
		struct ibv_flow_attr attr;
		struct {
			enum ibv_flow_spec_type type;
			uint16_t size;
		} drop;
		struct ibv_flow_spec_counter_action count[2];
	} __attribute__((packed, aligned(8))) wanted = {
		.attr = { .priority = 3, .num_of_specs = 2, .size = sizeof(wanted) },
		.drop = { .type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof(wanted.drop) },
	};
	struct ibv_flow_attr *flow_attr = (void *)&wanted;
	struct ibv_qp qp = { .context = context };
	struct ibv_counters *counters;
	struct ibv_flow *bound[2];
	struct ibv_flow flow;
	int i;

	CHECK(!ops.create_counters(context, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = 0;
	destroyed_counters = 0;
	fail_next = ENOMEM;
	CHECK(!ops.create_counters(context, &attr) && errno == ENOMEM);
	fail_next = 0;
	counters = ops.create_counters(context, &attr);
	CHECK(counters && counters->context == context);
	CHECK(ops.attach_counters_point_flow(counters, &point, &flow) == EOPNOTSUPP);
	for (i = 0; i < 2; i++)
		wanted.count[i] = (struct ibv_flow_spec_counter_action){
			.type = IBV_FLOW_SPEC_ACTION_COUNT,
			.size = sizeof(wanted.count[i]),
			.counters = counters,
		};
	/* Nothing was chosen. */
	CHECK(!ops.create_flow(&qp, flow_attr) && errno == EINVAL);
	CHECK(!ops.attach_counters_point_flow(counters, &point, NULL));
	point.counter_desc = IBV_COUNTER_BYTES + 1;
	CHECK(ops.attach_counters_point_flow(counters, &point, NULL) == EOPNOTSUPP);
	point = (struct ibv_counter_attach_attr){ .counter_desc = IBV_COUNTER_PACKETS, .comp_mask = 1 };
	CHECK(ops.attach_counters_point_flow(counters, &point, NULL) == EOPNOTSUPP);
	point.comp_mask = 0;
	CHECK(!ops.attach_counters_point_flow(counters, &point, NULL));
	/* Nothing can be chosen while flows have the counters. */
	fail_next = ENOMEM;
	CHECK(!ops.create_flow(&qp, flow_attr) && errno == ENOMEM);
	fail_next = 0;
	point.index = 2;
	CHECK(!ops.attach_counters_point_flow(counters, &point, NULL));
	for (i = 0; i < 2; i++)
		CHECK((bound[i] = ops.create_flow(&qp, flow_attr)));
	for (i = 0; i < 2; i++) {
		CHECK(ops.attach_counters_point_flow(counters, &point, NULL) == EBUSY);
		fail_next = EIO;
		CHECK(ops.destroy_flow(bound[i]) == EIO);
		fail_next = 0;
		CHECK(ops.attach_counters_point_flow(counters, &point, NULL) == EBUSY);
		CHECK(!ops.destroy_flow(bound[i]));
	}
	point.index = 1;
	CHECK(!ops.attach_counters_point_flow(counters, &point, NULL));
	wanted.attr.num_of_specs = 3;
	CHECK(!ops.create_flow(&qp, flow_attr) && errno == EINVAL);

	CHECK(ops.read_counters(counters, values, 2, flags) == EINVAL && values[0] == 1);
	CHECK(ops.read_counters(counters, values, 0, flags) == EINVAL);
	fail_next = EIO;
	CHECK(ops.read_counters(counters, values, 3, flags) == EIO && values[0] == 1);
	fail_next = 0;
	CHECK(!ops.read_counters(counters, values, 3, flags));
	CHECK(values[0] == 7 && values[1] == 7 && values[2] == 707 && values[3] == 1);

	fail_next = EBUSY;
	CHECK(ops.destroy_counters(counters) == EBUSY && !destroyed_counters);
	fail_next = 0;
	CHECK(!ops.destroy_counters(counters) && destroyed_counters == 1);
}

#if LEVEL >= 18
/* The kernel changes the values; the program reads them from memory. */
static void completion_counters(struct ibv_context *context)
{
	struct ibv_comp_cntr_init_attr attr = {};
	struct ibv_qp_attach_comp_cntr_attr operations = { .op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE };
	struct ibv_comp_cntr_caps caps = {};
	uint64_t counts[2] = { 0x0102030405060708, UINT64_MAX }, value;
	struct ibv_qp qp = { .context = context };
	struct ibv_comp_cntr *counter;

	CHECK(!ops.query_comp_cntr_caps(context, &caps, sizeof(caps)) && caps.max_counters == 17);
	attr.comp_mask = 1;
	CHECK(!ops.create_comp_cntr(context, &attr) && errno == EOPNOTSUPP);
	attr = (struct ibv_comp_cntr_init_attr){ .flags = 1 };
	CHECK(!ops.create_comp_cntr(context, &attr) && errno == EOPNOTSUPP);
	attr = (struct ibv_comp_cntr_init_attr){ .type = IBV_COMP_CNTR_TYPE_BYTES };
	CHECK(!ops.create_comp_cntr(context, &attr) && errno == EOPNOTSUPP);
	attr.type = IBV_COMP_CNTR_TYPE_WRS;
	destroyed_comp_cntrs = 0;
	fail_next = ENOMEM;
	CHECK(!ops.create_comp_cntr(context, &attr) && errno == ENOMEM && !destroyed_comp_cntrs);
	fail_next = 0;
	unmapped_counters = 1;
	CHECK(!ops.create_comp_cntr(context, &attr) && errno == ENOENT && destroyed_comp_cntrs == 1);
	unmapped_counters = 0;
	counter = ops.create_comp_cntr(context, &attr);
	CHECK(counter && counter->context == context && counter->handle == 16);

	CHECK(!ops.read_comp_cntr(counter, &value) && !value);
	CHECK(pwrite(context->cmd_fd, counts, sizeof(counts), 12288) == sizeof(counts));
	CHECK(!ops.read_comp_cntr(counter, &value) && value == counts[0]);
	CHECK(!ops.read_err_comp_cntr(counter, &value) && value == counts[1]);
	CHECK(!ops.set_comp_cntr(counter, 1) && changed_value == 'c' && change == 's' && change_amount == 1);
	CHECK(!ops.set_err_comp_cntr(counter, 2) && changed_value == 'e' && change == 's' && change_amount == 2);
	CHECK(!ops.inc_comp_cntr(counter, 3) && changed_value == 'c' && change == 'i' && change_amount == 3);
	CHECK(!ops.inc_err_comp_cntr(counter, 4) && changed_value == 'e' && change == 'i' && change_amount == 4);
	CHECK(!ops.qp_attach_comp_cntr(&qp, counter, &operations) && attached_operations == operations.op_mask);
	operations.op_mask |= 1 << 6;
	CHECK(ops.qp_attach_comp_cntr(&qp, counter, &operations) == EOPNOTSUPP);
	operations = (struct ibv_qp_attach_comp_cntr_attr){ .comp_mask = 1, .op_mask = 1 };
	CHECK(ops.qp_attach_comp_cntr(&qp, counter, &operations) == EOPNOTSUPP);

	fail_next = EBUSY;
	CHECK(ops.destroy_comp_cntr(counter) == EBUSY && destroyed_comp_cntrs == 1);
	fail_next = 0;
	CHECK(!ops.destroy_comp_cntr(counter) && destroyed_comp_cntrs == 2);
}
#endif

/* The header of segments is in the entry, in front of the elements. */
static void segments(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq *cq = ops.create_cq(context, 5, NULL, 0);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RAW_PACKET,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
		.max_tso_header = 513,
	};
	char header[54] = "a header";
	struct ibv_sge sge = { .addr = 1, .length = 5000, .lkey = 5 };
	struct ibv_send_wr wr = { .wr_id = 78, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_TSO }, *bad;
	struct ibv_qp_ex *ex;
	struct ibv_qp *qp;

	CHECK(!ops.create_qp_ex(context, &attr) && errno == EINVAL);
	attr.max_tso_header = 54;
	attr.qp_type = IBV_QPT_UD;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK(!ops.create_qp_ex(context, &attr) && errno == EOPNOTSUPP);
	attr.max_tso_header = 0;
	attr.send_ops_flags = IBV_QP_EX_WITH_TSO;
	CHECK(!ops.create_qp_ex(context, &attr) && errno == EOPNOTSUPP);
	attr.max_tso_header = 54;
	attr.qp_type = IBV_QPT_RAW_PACKET;
	qp = ops.create_qp_ex(context, &attr);
	CHECK(qp && qp_req.sq.stride == 256 && attr.max_tso_header == 54);
	to_rts(qp);

	ex = &((struct verbs_qp *)qp)->qp_ex;
	ibv_wr_start(ex);
	ex->wr_id = 79;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_tso(ex, header, sizeof(header), 1400);
	ibv_wr_set_sge(ex, 5, 1, 5000);
	CHECK(!ibv_wr_complete(ex) && sent() == 1);
	wr.tso.hdr = header;
	wr.tso.hdr_sz = sizeof(header);
	wr.tso.mss = 1400;
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(qp, &wr, &bad) && sent() == 2);
	for (unsigned int i = 0; i < 2; i++) {
		CHECK(send_entry(i)[0] == 10 && send_entry(i)[1] == 1 && send_entry(i)[2] == 1);
		CHECK(get32(send_entry(i) + 4) == 54 && get32(send_entry(i) + 16) == 1400);
		CHECK(!memcmp(send_entry(i) + 64, header, 54) && !memcmp(send_entry(i) + 128, &sge, 16));
	}
	complete(17, send_name(&qp_req, 1), IBV_WC_TSO, 0);
	{
		struct ibv_wc wc[2];

		CHECK(ibv_poll_cq(cq, 2, wc) == 1 && wc->wr_id == 78 && wc->opcode == IBV_WC_TSO);
	}
	wr.tso.hdr_sz = 55;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.tso.hdr_sz = 0;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL);
	wr.tso.hdr_sz = 54;
	wr.send_flags = IBV_SEND_INLINE;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && sent() == 2);
	ibv_wr_start(ex);
	ibv_wr_send_tso(ex, header, 55, 1400);
	CHECK(ibv_wr_complete(ex) == EINVAL && sent() == 2);
	take_bits();
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(cq));
}

/* Frames are sent as they are, and flows belong to the kernel. */
static void raw_packets(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET };
	char frame[60] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5 };
	struct ibv_sge sge = { .addr = (uintptr_t)frame, .length = sizeof(frame), .lkey = 5 };
	struct ibv_send_wr wr = { .wr_id = 77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_flow_attr rule = { .size = sizeof(rule), .priority = 3, .port = 1 };
	struct ibv_flow *flow;
	struct ibv_qp *qp;

	destroyed_flows = 0;
	attr.cap = (struct ibv_qp_cap){ .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	qp = ops.create_qp(pd, &attr);
	CHECK(qp);
	to_rts(qp);
	CHECK(!ops.post_send(qp, &wr, &bad) && send_entry(0)[1] == 0);
	wr.send_flags = IBV_SEND_IP_CSUM | IBV_SEND_SIGNALED;
	CHECK(!ops.post_send(qp, &wr, &bad) && send_entry(1)[1] == (1 << 4 | 1 << 0));
	take_bits();
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	CHECK(ops.post_send(qp, &wr, &bad) && bad == &wr);

	fail_next = EPERM;
	CHECK(!ops.create_flow(qp, &rule) && errno == EPERM);
	fail_next = 0;
	flow = ops.create_flow(qp, &rule);
	CHECK(flow && flow->context == context && flow->handle == 14);
	fail_next = EIO;
	CHECK(ops.destroy_flow(flow) == EIO);
	fail_next = 0;
	CHECK(!ops.destroy_flow(flow) && destroyed_flows == 1);
	CHECK(!ops.destroy_qp(qp));
	segments(context, pd);
	counters(context);
}

/* A work queue has the receives of a queue pair; a queue pair with a table of them has nothing. */
static void work_queues(struct ibv_context *context, struct ibv_pd *pd)
{
	uint8_t key[40] = { 7, 8, 9 };
	struct ibv_cq *cq = ops.create_cq(context, 8, NULL, 0);
	struct ibv_wq_init_attr attr = { .wq_type = IBV_WQT_RQ, .max_wr = 3, .max_sge = 2, .pd = pd, .cq = cq };
	struct ibv_wq_attr to = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
	struct ibv_sge sge[3] = { { .addr = 0x1000, .length = 64, .lkey = 5 } };
	struct ibv_recv_wr wr = { .wr_id = 77, .sg_list = sge, .num_sge = 1 }, *bad;
	struct ibv_rwq_ind_table_init_attr table_attr = { .log_ind_tbl_size = 14 };
	struct ibv_qp_init_attr_ex qp_attr = { .qp_type = IBV_QPT_RAW_PACKET, .pd = pd };
	struct ibv_device_attr_ex device;
	struct ibv_rwq_ind_table *table;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_wc wc;
	struct ibv_wq *wq;
	struct ibv_qp *qp;
	uint64_t name;
	int i;

	CHECK(cq);
	completions = 0;
	CHECK(!ops.query_device_ex(context, NULL, &device, sizeof(device)));
	CHECK(device.rss_caps.rx_hash_fields_mask == 0xff);
	CHECK(device.rss_caps.rx_hash_function == IBV_RX_HASH_FUNC_TOEPLITZ);

	attr.wq_type = 1;
	CHECK(!ops.create_wq(context, &attr) && errno == EINVAL);
	attr.wq_type = IBV_WQT_RQ;
	attr.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
	attr.create_flags = IBV_WQ_FLAGS_DELAY_DROP;
	CHECK(!ops.create_wq(context, &attr) && errno == EOPNOTSUPP);
	attr.create_flags = IBV_WQ_FLAGS_CVLAN_STRIPPING | IBV_WQ_FLAGS_SCATTER_FCS;
	attr.max_wr = 0;
	CHECK(!ops.create_wq(context, &attr) && errno == EINVAL);
	attr.max_wr = 3;
	fail_next = ENOMEM;
	CHECK(!ops.create_wq(context, &attr) && errno == ENOMEM);
	fail_next = 0;
	wq = ops.create_wq(context, &attr);
	CHECK(create_flags == (IBV_WQ_FLAGS_CVLAN_STRIPPING | IBV_WQ_FLAGS_SCATTER_FCS));
	CHECK(wq && wq->post_recv && srq_req.ring.entries == 4 && attr.max_wr == 4 && attr.max_sge >= 2);

	CHECK(wq->post_recv(wq, &wr, &bad) == EINVAL && bad == &wr);
	fail_next = EIO;
	CHECK(ops.modify_wq(wq, &to) == EIO);
	fail_next = 0;
	CHECK(wq->post_recv(wq, &wr, &bad) == EINVAL);
	CHECK(!ops.modify_wq(wq, &to) && wq_change.wq_state == IBV_WQS_RDY);
	for (i = 0; i < 4; i++)
		CHECK(!wq->post_recv(wq, &wr, &bad));
	CHECK(wq->post_recv(wq, &wr, &bad) == ENOMEM && bad == &wr);
	CHECK(*header(srq_req.buf_addr, &srq_req.ring) == 4 && !take_bits());
	name = get64(entry(srq_req.buf_addr, &srq_req.ring, 0));
	CHECK(get64(entry(srq_req.buf_addr, &srq_req.ring, 0) + 16) == 0x1000);
	complete(20, name, IBV_WC_RECV, 0);
	CHECK(ops.poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 77 && wc.qp_num == 20);
	/* What was not polled is gone after a reset. */
	complete(20, get64(entry(srq_req.buf_addr, &srq_req.ring, 1)), IBV_WC_RECV, 0);
	to.wq_state = IBV_WQS_RESET;
	CHECK(!ops.modify_wq(wq, &to) && !ops.poll_cq(cq, 1, &wc));
	CHECK(wq->post_recv(wq, &wr, &bad) == EINVAL);
	/* In error, the device is told, unless the queue was reset meanwhile. */
	to.wq_state = IBV_WQS_ERR;
	CHECK(!ops.modify_wq(wq, &to));
	header(srq_req.buf_addr, &srq_req.ring)[17] = 1;
	memset(&wq_change, 0, sizeof(wq_change));
	CHECK(!wq->post_recv(wq, &wr, &bad));
	CHECK(take_bits());
	if (!has_doorbells) {
		CHECK(wq_change.attr_mask == (IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE));
		CHECK(wq_change.wq_state == IBV_WQS_ERR && wq_change.curr_wq_state == IBV_WQS_ERR);
	}

	CHECK(!ops.create_rwq_ind_table(context, &table_attr) && errno == EINVAL);
	table_attr.log_ind_tbl_size = 0;
	table_attr.ind_tbl = &wq;
	fail_next = ENOMEM;
	CHECK(!ops.create_rwq_ind_table(context, &table_attr) && errno == ENOMEM);
	fail_next = 0;
	table = ops.create_rwq_ind_table(context, &table_attr);
	CHECK(table);

	qp_attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH;
	qp_attr.rx_hash_conf = (struct ibv_rx_hash_conf){ IBV_RX_HASH_FUNC_TOEPLITZ, 40, key, IBV_RX_HASH_SRC_IPV4 };
	qp_attr.rwq_ind_tbl = table;
	CHECK(!ops.create_qp_ex(context, &qp_attr) && errno == EINVAL);
	qp_attr.comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE;
	qp_attr.rx_hash_conf.rx_hash_key_len = 39;
	CHECK(!ops.create_qp_ex(context, &qp_attr) && errno == EINVAL);
	qp_attr.rx_hash_conf.rx_hash_key_len = 40;
	qp_attr.rx_hash_conf.rx_hash_function = 2;
	CHECK(!ops.create_qp_ex(context, &qp_attr) && errno == EOPNOTSUPP);
	qp_attr.rx_hash_conf.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
	qp_attr.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_INNER | IBV_RX_HASH_SRC_IPV4;
	CHECK(!ops.create_qp_ex(context, &qp_attr) && errno == EOPNOTSUPP);
	qp_attr.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_PORT_UDP;
	qp_attr.qp_type = IBV_QPT_UD;
	CHECK(!ops.create_qp_ex(context, &qp_attr) && errno == EINVAL);
	qp_attr.qp_type = IBV_QPT_RAW_PACKET;
	qp_attr.cap.max_send_wr = 1;
	CHECK(!ops.create_qp_ex(context, &qp_attr) && errno == EINVAL);
	qp_attr.cap.max_send_wr = 0;
	fail_next = EPERM;
	CHECK(!ops.create_qp_ex(context, &qp_attr) && errno == EPERM);
	fail_next = 0;
	qp = ops.create_qp_ex(context, &qp_attr);
	CHECK(qp && qp->qp_num == 19 && scaling_req.fields == 0x81 && !memcmp(scaling_req.key, key, sizeof(key)));
	CHECK(ops.post_send(qp, &send, &bad_send) == EINVAL && ops.post_recv(qp, &wr, &bad) == EINVAL);

	CHECK(!ops.destroy_qp(qp));
	fail_next = EBUSY;
	CHECK(ops.destroy_rwq_ind_table(table) == EBUSY && ops.destroy_wq(wq) == EBUSY);
	fail_next = 0;
	CHECK(!ops.destroy_rwq_ind_table(table) && !ops.destroy_wq(wq) && !ops.destroy_cq(cq));
}

/* An imported context rings the same slots in the same area. */
static void importing(struct ibv_context *context)
{
	struct verbs_context *other = provider->import_context(context->device, dup(context->cmd_fd));
	struct ibv_context *imported = &other->context;
	struct ibv_parent_domain_init_attr attr = {};
	struct ibv_pd *pd, *parent;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	CHECK(other && imported != context);
	CHECK(!ops.import_pd(imported, 78) && errno == ENOENT);
	pd = ops.import_pd(imported, 77);
	CHECK(pd && pd->context == imported && pd->handle == 77);
	CHECK(!ops.import_mr(pd, 6) && errno == ENOENT);
	mr = ops.import_mr(pd, 5);
	CHECK(mr && mr->pd == pd && mr->lkey == 9 && mr->rkey == 9);
	ops.unimport_mr(mr);

	cq = ops.create_cq(imported, 16, NULL, 0);
	qp = connected(pd, cq, cq, 17);
	kernel_rings = 0;
	*doorbell = 0;
	CHECK(!post_send(qp, 1) && take_bits() && (has_doorbells ? *doorbell == 130 : kernel_rings == 1));
	CHECK(!ops.destroy_qp(qp) && !ops.destroy_cq(cq));

	/* A domain in a parent domain stays until the parent domain is gone. */
	attr.pd = pd;
	parent = ops.alloc_parent_domain(imported, &attr);
	ops.unimport_pd(pd);
	CHECK(parent && parent->handle == 77 && !ops.dealloc_pd(parent));
	ops.unimport_pd(pd);
	ops.free_context(imported);
}

static void rate_limits(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_rate_limit_attr limit = { .rate_limit = 4000, .max_burst_sz = 9000, .typical_pkt_sz = 1500 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .rate_limit = 3000 };
	struct ibv_qp *qp = connected(pd, cq, cq, 17);

	CHECK(!ops.modify_qp_rate_limit(qp, &limit));
	CHECK(modify_rate == 4000 && modify_req.max_burst == 9000 && modify_req.typical_packet == 1500);
	CHECK(!modify_req.comp_mask);
	limit.comp_mask = 1;
	CHECK(ops.modify_qp_rate_limit(qp, &limit) == EINVAL);
	limit.comp_mask = 0;
	fail_next = ERANGE;
	CHECK(ops.modify_qp_rate_limit(qp, &limit) == ERANGE);
	fail_next = 0;
	/* Together with other attributes. */
	CHECK(!ops.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT));
	CHECK(modify_rate == 3000 && !modify_req.max_burst && !modify_req.typical_packet);
	CHECK(!ops.destroy_qp(qp));
}

void exercise(void)
{
	CHECK(provider && !strcmp(provider->name, "vrnic"));
	CHECK(provider->match_min_abi_version == VRNIC_ABI_VERSION);
	CHECK(provider->match_table[0].kind == VERBS_MATCH_DRIVER_ID);
	CHECK(provider->match_table[0].u.driver_id == VRNIC_DRIVER_ID);
	CHECK(provider->match_table[1].kind == VERBS_MATCH_SENTINEL);

	for (has_doorbells = 0; has_doorbells < 2; has_doorbells++) {
		struct verbs_device *device = provider->alloc_device(NULL);
		struct ibv_context *context = open_device();
		struct ibv_pd *pd = ops.alloc_pd(context);
		struct ibv_device_attr_ex attr;
		struct ibv_cq *cq;

		CHECK(device && pd && !ops.query_device_ex(context, NULL, &attr, sizeof(attr)));
		CHECK(!strcmp(attr.orig_attr.fw_ver, "3.2.1"));
		CHECK(attr.packet_pacing_caps.qp_rate_limit_min == 1);
		CHECK(attr.packet_pacing_caps.qp_rate_limit_max == 5000);
		CHECK(attr.packet_pacing_caps.supported_qpts == 1 << IBV_QPT_RC);
		CHECK(attr.tso_caps.max_tso == 262144 && attr.tso_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET);
		CHECK(!attr.raw_packet_caps && !attr.max_wq_type_rq);
		completion_queues(context, pd);
		clocks(context, pd);
		ignored_overrun(context, pd);
		reset_while_polling(context, pd);
		nothing_completes(context, pd);
		take_bits();
		kernel_rings = 0;
		*doorbell = 0;
		/* No ring may be where a child process has it, too. */
		fork_error = ENOMEM;
		CHECK(!ops.create_cq(context, 5, NULL, 0) && errno == ENOMEM);
		fork_error = 0;
		cq = ops.create_cq(context, 5, NULL, 0);
		CHECK(cq && kept_bytes);
		send_and_receive(context, pd, cq);
		extended_posting(context, pd, cq);
		creation_flags(pd, cq);
		windows(pd, cq);
		placement(pd, cq);
		shared_receives(context, pd);
		extended_connections(context, pd);
		resized_completions(context, pd);
		domains(context, pd);
		allocators(context, pd);
		device_memory(context, pd);
#if LEVEL >= 18
		completion_counters(context);
#endif
		raw_packets(context, pd, cq);
		work_queues(context, pd);
		importing(context);
		rate_limits(pd, cq);
		failure(context, pd);
		CHECK(!ops.destroy_cq(cq) && !ops.dealloc_pd(pd));
		ops.free_context(context);
		provider->uninit_device(device);
		CHECK(!kept_bytes);
	}
}
