/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Connections between queue pairs of one device. */

#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

/*
 * Returns the index of a GID that packets can be routed with, or a negative
 * error if there is none. Stores the GID and its network device's address.
 */
static inline int connect_gid(struct ib_device *dev, union ib_gid *gid, u8 *mac)
{
	const struct ib_gid_attr *attr;
	bool routable;
	int i;

	for (i = 0; i < dev->port_data[1].immutable.gid_tbl_len; i++) {
		attr = rdma_get_gid_attr(dev, 1, i);
		if (IS_ERR(attr))
			continue;
		routable = attr->gid_type == IB_GID_TYPE_ROCE_UDP_ENCAP &&
			   ipv6_addr_v4mapped((struct in6_addr *)&attr->gid);
		routable = routable && !rdma_read_gid_l2_fields(attr, NULL, mac);
		*gid = attr->gid;
		rdma_put_gid_attr(attr);
		if (routable)
			return i;
	}
	return -ENOENT;
}

/* Stores the address of the port of a device for queue pairs of the same device: a LID or a GID. */
static inline int connect_address(struct ib_device *dev, struct rdma_ah_attr *ah)
{
	struct ib_port_attr port;
	union ib_gid gid;
	int ret;

	ah->type = rdma_ah_find_type(dev, 1);
	rdma_ah_set_port_num(ah, 1);
	if (ah->type == RDMA_AH_ATTR_TYPE_IB) {
		ret = ib_query_port(dev, 1, &port);
		if (!ret)
			rdma_ah_set_dlid(ah, port.lid);
		return ret;
	}
	ret = connect_gid(dev, &gid, ah->roce.dmac);
	if (ret < 0)
		return ret;
	rdma_ah_set_grh(ah, &gid, 0, ret, 64, 0);
	return 0;
}

/* Moves a reliable connection from RESET to RTS. access has the rights of the peer. */
static inline int connect_qp(struct ib_qp *qp, u32 peer, int access)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = access,
	};
	int ret;

	/* The peer is on the same device. */
	ret = connect_address(qp->device, &attr.ah_attr);
	if (ret)
		return ret;
	ret = ib_modify_qp(qp, &attr,
			   IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
			   IB_QP_ACCESS_FLAGS);
	if (ret)
		return ret;

	attr.qp_state = IB_QPS_RTR;
	attr.path_mtu = IB_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 1;
	ret = ib_modify_qp(qp, &attr,
			   IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU |
			   IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			   IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
	if (ret)
		return ret;

	attr.qp_state = IB_QPS_RTS;
	attr.timeout = 17;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	return ib_modify_qp(qp, &attr,
			    IB_QP_STATE | IB_QP_SQ_PSN | IB_QP_TIMEOUT |
			    IB_QP_RETRY_CNT | IB_QP_RNR_RETRY |
			    IB_QP_MAX_QP_RD_ATOMIC);
}
