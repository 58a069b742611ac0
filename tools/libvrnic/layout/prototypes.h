/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Prototypes of src/ffi/functions.rs and src/ffi/driver.rs (mod op) in C. Compiled after the headers of a release: a
 * declaration that differs from the release's own is an error. Passing a pointer to an opaque type in Rust is spelled
 * with its real type here.
 *
 * RELEASE is the number of the release without what follows the point, and LEVEL that of its libibverbs. Releases 50 to
 * 53 pass one argument less to ibv_cmd_reg_dmabuf_mr, with the same private ABI. They do not see the null pointer that
 * the provider passes after the others.
 */
#include <infiniband/cmd_ioctl.h>
#include <rdma/ib_user_ioctl_cmds.h>

void __verbs_log(struct verbs_context *context, uint32_t level, const char *format, ...);
void *_verbs_init_and_alloc_context(struct ibv_device *device, int cmd_fd, size_t alloc_size,
				    struct verbs_context *context_offset, uint32_t driver_id);
void verbs_uninit_context(struct verbs_context *context);
void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops);
void verbs_register_driver(const struct verbs_device_ops *ops);
int ibv_cmd_get_context(struct verbs_context *context, struct ibv_get_context *cmd, size_t cmd_size,
#if RELEASE >= 57
			struct ibv_fd_arr *fd_arr,
#endif
			struct ib_uverbs_get_context_resp *resp, size_t resp_size);
int ibv_cmd_create_cq_ex(struct ibv_context *context, const struct ibv_cq_init_attr_ex *cq_attr,
#if RELEASE >= 59
			 struct verbs_create_cq_prov_attr *prov_attr,
#endif
			 struct verbs_cq *cq, struct ibv_create_cq_ex *cmd, size_t cmd_size,
			 struct ib_uverbs_ex_create_cq_resp *resp, size_t resp_size, uint32_t cmd_flags);
int ibv_cmd_create_qp_ex2(struct ibv_context *context, struct verbs_qp *qp, struct ibv_qp_init_attr_ex *qp_attr,
			  struct ibv_create_qp_ex *cmd, size_t cmd_size, struct ib_uverbs_ex_create_qp_resp *resp,
			  size_t resp_size
#if RELEASE >= 64
			  , struct ibv_command_buffer *driver
#endif
			  );
#if RELEASE >= 59
int ibv_cmd_reg_mr_ex(struct ibv_pd *pd, struct verbs_mr *vmr, struct ibv_mr_init_attr *mr_init_attr);
struct ibv_mr *op_reg_mr_ex(struct ibv_pd *, struct ibv_mr_init_attr *);
int ibv_cmd_alloc_dmah(struct ibv_context *ctx, struct verbs_dmah *dmah, struct ibv_dmah_init_attr *attr);
int ibv_cmd_free_dmah(struct verbs_dmah *dmah);
/* A handle begins with what programs see of it. */
struct ibv_dmah *op_alloc_dmah(struct ibv_context *, struct ibv_dmah_init_attr *);
int op_dealloc_dmah(struct ibv_dmah *);
#endif
#if LEVEL >= 18
int ibv_cmd_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr *comp_cntr,
			     struct ibv_command_buffer *link);
int ibv_cmd_destroy_comp_cntr(struct ibv_comp_cntr *comp_cntr);
int ibv_cmd_set_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t value);
int ibv_cmd_set_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t value);
int ibv_cmd_inc_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t amount);
int ibv_cmd_inc_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t amount);
int ibv_cmd_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *comp_cntr,
				struct ibv_qp_attach_comp_cntr_attr *attr);
int ibv_cmd_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t caps_size);
struct ibv_comp_cntr *op_create_comp_cntr(struct ibv_context *, struct ibv_comp_cntr_init_attr *);
int op_destroy_comp_cntr(struct ibv_comp_cntr *);
int op_set_comp_cntr(struct ibv_comp_cntr *, uint64_t);
int op_read_comp_cntr(struct ibv_comp_cntr *, uint64_t *);
int op_qp_attach_comp_cntr(struct ibv_qp *, struct ibv_comp_cntr *, struct ibv_qp_attach_comp_cntr_attr *);
int op_query_comp_cntr_caps(struct ibv_context *, struct ibv_comp_cntr_caps *, size_t);
#endif
#if LEVEL >= 16
int op_query_port_speed(struct ibv_context *, uint32_t, uint64_t *);
#endif
int ibv_cmd_query_context(struct ibv_context *context, struct ibv_command_buffer *driver);
int execute_ioctl(struct ibv_context *context, struct ibv_command_buffer *cmd);
int ibv_cmd_query_device_any(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			     struct ibv_device_attr_ex *attr, size_t attr_size,
			     struct ib_uverbs_ex_query_device_resp *resp, size_t *resp_size);
int ibv_cmd_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr,
		       struct ibv_query_port *cmd, size_t cmd_size);
int ibv_cmd_alloc_pd(struct ibv_context *context, struct ibv_pd *pd, struct ibv_alloc_pd *cmd, size_t cmd_size,
		     struct ib_uverbs_alloc_pd_resp *resp, size_t resp_size);
int ibv_cmd_dealloc_pd(struct ibv_pd *pd);
int ibv_cmd_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t hca_va, int access, struct verbs_mr *vmr,
		   struct ibv_reg_mr *cmd, size_t cmd_size, struct ib_uverbs_reg_mr_resp *resp, size_t resp_size);
int ibv_cmd_query_mr(struct ibv_pd *pd, struct verbs_mr *vmr, uint32_t mr_handle);
int ibv_cmd_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access,
			  struct verbs_mr *vmr
#if RELEASE >= 54
			  , struct ibv_command_buffer *driver
#endif
			  );
int ibv_cmd_alloc_dm(struct ibv_context *ctx, const struct ibv_alloc_dm_attr *dm_attr, struct verbs_dm *dm,
		     struct ibv_command_buffer *link);
int ibv_cmd_free_dm(struct verbs_dm *dm);
int ibv_cmd_reg_dm_mr(struct ibv_pd *pd, struct verbs_dm *dm, uint64_t offset, size_t length, unsigned int access,
		      struct verbs_mr *vmr, struct ibv_command_buffer *link);
int ibv_cmd_rereg_mr(struct verbs_mr *vmr, uint32_t flags, void *addr, size_t length, uint64_t hca_va, int access,
		     struct ibv_pd *pd, struct ibv_rereg_mr *cmd, size_t cmd_size, struct ib_uverbs_rereg_mr_resp *resp,
		     size_t resp_size);
int ibv_cmd_dereg_mr(struct verbs_mr *vmr);
int ibv_cmd_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg_list,
		      uint32_t num_sge);
int ibv_cmd_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type, struct ibv_mw *mw, struct ibv_alloc_mw *cmd,
		     size_t cmd_size, struct ib_uverbs_alloc_mw_resp *resp, size_t resp_size);
int ibv_cmd_dealloc_mw(struct ibv_mw *mw);
int ibv_cmd_create_ah(struct ibv_pd *pd, struct ibv_ah *ah, struct ibv_ah_attr *attr,
		      struct ib_uverbs_create_ah_resp *resp, size_t resp_size);
int ibv_cmd_destroy_ah(struct ibv_ah *ah);
int ibv_cmd_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel, int comp_vector,
		      struct ibv_cq *cq, struct ibv_create_cq *cmd, size_t cmd_size,
		      struct ib_uverbs_create_cq_resp *resp, size_t resp_size);
int ibv_cmd_resize_cq(struct ibv_cq *cq, int cqe, struct ibv_resize_cq *cmd, size_t cmd_size,
		      struct ib_uverbs_resize_cq_resp *resp, size_t resp_size);
int ibv_cmd_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr, struct ibv_modify_cq *cmd, size_t cmd_size);
int ibv_cmd_destroy_cq(struct ibv_cq *cq);
int ibv_cmd_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *wq_init_attr, struct ibv_wq *wq,
		      struct ibv_create_wq *cmd, size_t cmd_size, struct ib_uverbs_ex_create_wq_resp *resp,
		      size_t resp_size);
int ibv_cmd_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attr, struct ibv_modify_wq *cmd, size_t cmd_size);
int ibv_cmd_destroy_wq(struct ibv_wq *wq);
int ibv_cmd_create_rwq_ind_table(struct ibv_context *context, struct ibv_rwq_ind_table_init_attr *init_attr,
				 struct ibv_rwq_ind_table *rwq_ind_table,
				 struct ib_uverbs_ex_create_rwq_ind_table_resp *resp, size_t resp_size);
int ibv_cmd_destroy_rwq_ind_table(struct ibv_rwq_ind_table *rwq_ind_table);
int ibv_cmd_create_srq(struct ibv_pd *pd, struct ibv_srq *srq, struct ibv_srq_init_attr *attr,
		       struct ibv_create_srq *cmd, size_t cmd_size, struct ib_uverbs_create_srq_resp *resp,
		       size_t resp_size);
int ibv_cmd_create_srq_ex(struct ibv_context *context, struct verbs_srq *srq, struct ibv_srq_init_attr_ex *attr_ex,
			  struct ibv_create_xsrq *cmd, size_t cmd_size, struct ib_uverbs_create_srq_resp *resp,
			  size_t resp_size);
int ibv_cmd_open_xrcd(struct ibv_context *context, struct verbs_xrcd *xrcd, int vxrcd_size,
		      struct ibv_xrcd_init_attr *attr, struct ibv_open_xrcd *cmd, size_t cmd_size,
		      struct ib_uverbs_open_xrcd_resp *resp, size_t resp_size);
int ibv_cmd_close_xrcd(struct verbs_xrcd *xrcd);
int ibv_cmd_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, int srq_attr_mask,
		       struct ibv_modify_srq *cmd, size_t cmd_size);
int ibv_cmd_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, struct ibv_query_srq *cmd, size_t cmd_size);
int ibv_cmd_destroy_srq(struct ibv_srq *srq);
int ibv_cmd_open_qp(struct ibv_context *context, struct verbs_qp *qp, int vqp_sz, struct ibv_qp_open_attr *attr,
		    struct ibv_open_qp *cmd, size_t cmd_size, struct ib_uverbs_create_qp_resp *resp, size_t resp_size);
int ibv_cmd_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_modify_qp *cmd,
		      size_t cmd_size);
int ibv_cmd_modify_qp_ex(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_modify_qp_ex *cmd,
			 size_t cmd_size, struct ib_uverbs_ex_modify_qp_resp *resp, size_t resp_size);
int ibv_cmd_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr,
		     struct ibv_query_qp *cmd, size_t cmd_size);
int ibv_cmd_destroy_qp(struct ibv_qp *qp);
int ibv_cmd_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int ibv_cmd_create_flow(struct ibv_qp *qp, struct ibv_flow *flow_id, struct ibv_flow_attr *flow_attr, void *ucmd,
			size_t ucmd_size);
int ibv_cmd_destroy_flow(struct ibv_flow *flow_id);
int ibv_cmd_create_counters(struct ibv_context *context, struct ibv_counters_init_attr *init_attr,
			    struct verbs_counters *vcounters, struct ibv_command_buffer *link);
int ibv_cmd_destroy_counters(struct verbs_counters *vcounters);
int ibv_cmd_read_counters(struct verbs_counters *vcounters, uint64_t *counters_value, uint32_t ncounters,
			  uint32_t flags, struct ibv_command_buffer *link);
int ibv_cmd_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int ibv_cmd_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

/* Operations: each initialiser is of the type that the Rust signature stands for. */
struct ibv_dm *op_alloc_dm(struct ibv_context *, struct ibv_alloc_dm_attr *);
struct ibv_mw *op_alloc_mw(struct ibv_pd *, enum ibv_mw_type);
struct ibv_pd *op_alloc_parent_domain(struct ibv_context *, struct ibv_parent_domain_init_attr *);
struct ibv_pd *op_alloc_pd(struct ibv_context *);
struct ibv_td *op_alloc_td(struct ibv_context *, struct ibv_td_init_attr *);
int op_attach_mcast(struct ibv_qp *, const union ibv_gid *, uint16_t);
int op_bind_mw(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
int op_close_xrcd(struct ibv_xrcd *);
void op_cq_event(struct ibv_cq *);
struct ibv_ah *op_create_ah(struct ibv_pd *, struct ibv_ah_attr *);
struct ibv_cq *op_create_cq(struct ibv_context *, int, struct ibv_comp_channel *, int);
struct ibv_cq_ex *op_create_cq_ex(struct ibv_context *, struct ibv_cq_init_attr_ex *);
struct ibv_flow *op_create_flow(struct ibv_qp *, struct ibv_flow_attr *);
struct ibv_qp *op_create_qp(struct ibv_pd *, struct ibv_qp_init_attr *);
struct ibv_qp *op_create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *);
struct ibv_rwq_ind_table *op_create_rwq_ind_table(struct ibv_context *, struct ibv_rwq_ind_table_init_attr *);
struct ibv_wq *op_create_wq(struct ibv_context *, struct ibv_wq_init_attr *);
int op_destroy_rwq_ind_table(struct ibv_rwq_ind_table *);
int op_destroy_wq(struct ibv_wq *);
int op_modify_wq(struct ibv_wq *, struct ibv_wq_attr *);
struct ibv_srq *op_create_srq(struct ibv_pd *, struct ibv_srq_init_attr *);
struct ibv_srq *op_create_srq_ex(struct ibv_context *, struct ibv_srq_init_attr_ex *);
int op_destroy_flow(struct ibv_flow *);
int op_attach_counters_point_flow(struct ibv_counters *, struct ibv_counter_attach_attr *, struct ibv_flow *);
struct ibv_counters *op_create_counters(struct ibv_context *, struct ibv_counters_init_attr *);
int op_destroy_counters(struct ibv_counters *);
int op_read_counters(struct ibv_counters *, uint64_t *, uint32_t, uint32_t);
int op_dealloc_mw(struct ibv_mw *);
int op_dealloc_pd(struct ibv_pd *);
int op_dealloc_td(struct ibv_td *);
int op_dereg_mr(struct verbs_mr *);
int op_destroy_ah(struct ibv_ah *);
int op_destroy_cq(struct ibv_cq *);
int op_destroy_qp(struct ibv_qp *);
int op_destroy_srq(struct ibv_srq *);
void op_free_context(struct ibv_context *);
int op_free_dm(struct ibv_dm *);
int op_get_srq_num(struct ibv_srq *, uint32_t *);
struct ibv_dm *op_import_dm(struct ibv_context *, uint32_t);
int op_modify_cq(struct ibv_cq *, struct ibv_modify_cq_attr *);
int op_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int);
int op_modify_qp_rate_limit(struct ibv_qp *, struct ibv_qp_rate_limit_attr *);
int op_modify_srq(struct ibv_srq *, struct ibv_srq_attr *, int);
struct ibv_qp *op_open_qp(struct ibv_context *, struct ibv_qp_open_attr *);
struct ibv_xrcd *op_open_xrcd(struct ibv_context *, struct ibv_xrcd_init_attr *);
int op_poll_cq(struct ibv_cq *, int, struct ibv_wc *);
int op_post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
int op_post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
int op_post_srq_recv(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
int op_query_device_ex(struct ibv_context *, const struct ibv_query_device_ex_input *, struct ibv_device_attr_ex *,
		       size_t);
int op_query_port(struct ibv_context *, uint8_t, struct ibv_port_attr *);
int op_query_qp(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
int op_query_rt_values(struct ibv_context *, struct ibv_values_ex *);
int op_query_srq(struct ibv_srq *, struct ibv_srq_attr *);
struct ibv_mr *op_reg_dm_mr(struct ibv_pd *, struct ibv_dm *, uint64_t, size_t, unsigned int);
struct ibv_mr *op_reg_dmabuf_mr(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
struct ibv_mr *op_reg_mr(struct ibv_pd *, void *, size_t, uint64_t, int);
int op_req_notify_cq(struct ibv_cq *, int);
int op_rereg_mr(struct verbs_mr *, int, struct ibv_pd *, void *, size_t, int);
int op_resize_cq(struct ibv_cq *, int);
void op_unimport_dm(struct ibv_dm *);

#define SAME_TYPE(member, function)                                                                                    \
	_Static_assert(__builtin_types_compatible_p(__typeof__(((struct verbs_context_ops *)0)->member),               \
						    __typeof__(&function)),                                            \
		       #member)
SAME_TYPE(advise_mr, ibv_cmd_advise_mr);
SAME_TYPE(alloc_dm, op_alloc_dm);
SAME_TYPE(alloc_mw, op_alloc_mw);
SAME_TYPE(alloc_parent_domain, op_alloc_parent_domain);
SAME_TYPE(alloc_pd, op_alloc_pd);
SAME_TYPE(alloc_td, op_alloc_td);
SAME_TYPE(attach_mcast, op_attach_mcast);
SAME_TYPE(bind_mw, op_bind_mw);
SAME_TYPE(cq_event, op_cq_event);
SAME_TYPE(create_ah, op_create_ah);
SAME_TYPE(create_cq, op_create_cq);
SAME_TYPE(create_cq_ex, op_create_cq_ex);
SAME_TYPE(create_flow, op_create_flow);
SAME_TYPE(create_qp, op_create_qp);
SAME_TYPE(create_qp_ex, op_create_qp_ex);
SAME_TYPE(create_rwq_ind_table, op_create_rwq_ind_table);
SAME_TYPE(create_wq, op_create_wq);
SAME_TYPE(destroy_rwq_ind_table, op_destroy_rwq_ind_table);
SAME_TYPE(destroy_wq, op_destroy_wq);
SAME_TYPE(modify_wq, op_modify_wq);
SAME_TYPE(create_srq, op_create_srq);
SAME_TYPE(create_srq_ex, op_create_srq_ex);
SAME_TYPE(close_xrcd, op_close_xrcd);
SAME_TYPE(free_dm, op_free_dm);
SAME_TYPE(get_srq_num, op_get_srq_num);
SAME_TYPE(open_qp, op_open_qp);
SAME_TYPE(open_xrcd, op_open_xrcd);
SAME_TYPE(dealloc_mw, op_dealloc_mw);
SAME_TYPE(dealloc_pd, op_dealloc_pd);
SAME_TYPE(dealloc_td, op_dealloc_td);
SAME_TYPE(dereg_mr, op_dereg_mr);
SAME_TYPE(destroy_ah, op_destroy_ah);
SAME_TYPE(destroy_cq, op_destroy_cq);
SAME_TYPE(destroy_flow, op_destroy_flow);
SAME_TYPE(attach_counters_point_flow, op_attach_counters_point_flow);
SAME_TYPE(create_counters, op_create_counters);
SAME_TYPE(destroy_counters, op_destroy_counters);
SAME_TYPE(read_counters, op_read_counters);
SAME_TYPE(destroy_qp, op_destroy_qp);
SAME_TYPE(destroy_srq, op_destroy_srq);
SAME_TYPE(detach_mcast, op_attach_mcast);
SAME_TYPE(free_context, op_free_context);
SAME_TYPE(import_dm, op_import_dm);
SAME_TYPE(modify_cq, op_modify_cq);
SAME_TYPE(modify_qp, op_modify_qp);
SAME_TYPE(modify_qp_rate_limit, op_modify_qp_rate_limit);
SAME_TYPE(modify_srq, op_modify_srq);
SAME_TYPE(poll_cq, op_poll_cq);
SAME_TYPE(post_recv, op_post_recv);
SAME_TYPE(post_send, op_post_send);
SAME_TYPE(post_srq_recv, op_post_srq_recv);
SAME_TYPE(query_device_ex, op_query_device_ex);
SAME_TYPE(query_port, op_query_port);
SAME_TYPE(query_qp, op_query_qp);
SAME_TYPE(query_rt_values, op_query_rt_values);
SAME_TYPE(query_srq, op_query_srq);
SAME_TYPE(reg_dm_mr, op_reg_dm_mr);
SAME_TYPE(reg_dmabuf_mr, op_reg_dmabuf_mr);
SAME_TYPE(reg_mr, op_reg_mr);
SAME_TYPE(req_notify_cq, op_req_notify_cq);
#if LEVEL >= 16
SAME_TYPE(query_port_speed, op_query_port_speed);
#endif
#if LEVEL >= 18
SAME_TYPE(create_comp_cntr, op_create_comp_cntr);
SAME_TYPE(destroy_comp_cntr, op_destroy_comp_cntr);
SAME_TYPE(set_comp_cntr, op_set_comp_cntr);
SAME_TYPE(set_err_comp_cntr, op_set_comp_cntr);
SAME_TYPE(inc_comp_cntr, op_set_comp_cntr);
SAME_TYPE(inc_err_comp_cntr, op_set_comp_cntr);
SAME_TYPE(read_comp_cntr, op_read_comp_cntr);
SAME_TYPE(read_err_comp_cntr, op_read_comp_cntr);
SAME_TYPE(qp_attach_comp_cntr, op_qp_attach_comp_cntr);
SAME_TYPE(query_comp_cntr_caps, op_query_comp_cntr_caps);
#endif
#if RELEASE >= 59
SAME_TYPE(reg_mr_ex, op_reg_mr_ex);
SAME_TYPE(alloc_dmah, op_alloc_dmah);
SAME_TYPE(dealloc_dmah, op_dealloc_dmah);
_Static_assert(offsetof(struct verbs_dmah, dmah.context) == 0, "dmah");
#endif
SAME_TYPE(rereg_mr, op_rereg_mr);
SAME_TYPE(resize_cq, op_resize_cq);
SAME_TYPE(unimport_dm, op_unimport_dm);

/* The first bytes of the device's attributes are the firmware version. */
_Static_assert(offsetof(struct ibv_device_attr_ex, orig_attr.fw_ver) == 0, "fw_ver");
_Static_assert(sizeof(((struct ibv_device_attr *)0)->fw_ver) == 64, "fw_ver");
_Static_assert(offsetof(struct ib_uverbs_ex_query_device_resp, base.fw_ver) == 0, "fw_ver");
