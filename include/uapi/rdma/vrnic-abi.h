/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause) */
/*
 * User ABI of vrnic, the virtio RDMA driver: the driver's part of the uverbs
 * commands. rust/wire/abi.rs defines the same structures.
 */
#ifndef VRNIC_ABI_USER_H
#define VRNIC_ABI_USER_H

#include <linux/types.h>
#include <rdma/ib_user_ioctl_cmds.h>

/* Increment this value if any change breaks existing user-space programs. */
#define VRNIC_ABI_VERSION 1

/*
 * Provisional: enum rdma_driver_id has no value for this driver yet. Providers
 * may also match the driver by its device names, "vrnic" and a number.
 */
#define VRNIC_DRIVER_ID 0x76726e

/*
 * Rules for all structures: comp_mask comes first and says which of the members
 * added later are valid (it is 0 if a structure has no such members). Reserved
 * members are 0. The kernel rejects a request that violates either rule.
 * Addresses are those of the calling process.
 */

/* Additions to the uverbs ioctl methods. */

/*
 * An attribute of UVERBS_METHOD_QUERY_CONTEXT: struct vrnic_alloc_context_resp,
 * for processes that import the objects of another process.
 */
enum vrnic_query_context_attrs {
	VRNIC_QUERY_CONTEXT_ATTR_RESP = (1U << UVERBS_ID_NS_SHIFT),
};

/* Methods of UVERBS_OBJECT_DEVICE. */
enum vrnic_device_methods {
	VRNIC_METHOD_QUERY_CLOCK = (1U << UVERBS_ID_NS_SHIFT),
};

/* Reads the device's clock: struct vrnic_query_clock_resp. */
enum vrnic_query_clock_attrs {
	VRNIC_QUERY_CLOCK_ATTR_RESP = (1U << UVERBS_ID_NS_SHIFT),
};

/* Methods of UVERBS_OBJECT_PD. */
enum vrnic_pd_methods {
	VRNIC_METHOD_FIND_PD = (1U << UVERBS_ID_NS_SHIFT),
};

/* Only checks that the handle is that of a protection domain. */
enum vrnic_find_pd_attrs {
	VRNIC_FIND_PD_ATTR_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
};

/* Methods of UVERBS_OBJECT_DM. */
enum vrnic_dm_methods {
	VRNIC_METHOD_QUERY_DM = (1U << UVERBS_ID_NS_SHIFT),
};

/* Says where a buffer is: struct vrnic_query_dm_resp for the handle. */
enum vrnic_query_dm_attrs {
	VRNIC_QUERY_DM_ATTR_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
	VRNIC_QUERY_DM_ATTR_RESP,
};

/* Methods of UVERBS_OBJECT_COMP_CNTR. */
enum vrnic_comp_cntr_methods {
	VRNIC_METHOD_QUERY_COMP_CNTR = (1U << UVERBS_ID_NS_SHIFT),
};

/* Says where the counts are: struct vrnic_query_comp_cntr_resp for the handle. */
enum vrnic_query_comp_cntr_attrs {
	VRNIC_QUERY_COMP_CNTR_ATTR_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
	VRNIC_QUERY_COMP_CNTR_ATTR_RESP,
};

/**
 * struct vrnic_alloc_context_req - request of ALLOC_CONTEXT
 * @comp_mask: 0
 * @slots: number of doorbell slots of the context, which limits its number of
 *	queue pairs; a power of two from 64 to 65536
 */
struct vrnic_alloc_context_req {
	__u32 comp_mask;
	__u32 slots;
};

/* Bit of comp_mask of struct vrnic_alloc_context_resp: null_key is valid. */
#define VRNIC_CONTEXT_NULL_KEY 0x1

/**
 * struct vrnic_alloc_context_resp - response of ALLOC_CONTEXT and QUERY_CONTEXT
 * @comp_mask: VRNIC_CONTEXT_NULL_KEY or 0
 * @doorbell_length: length of the doorbell page in bytes, or 0 if the device
 *	has no doorbell page; then POST_SEND without work requests rings the
 *	doorbell of a queue pair
 * @doorbell_offset: mmap() offset of the doorbell page
 * @notify_offset: mmap() offset of the notify area
 * @notify_length: length of that mapping in bytes, whole pages, at least
 *	256 + slots / 8; all processes that use the context share the area
 * @max_inline_data: maximum payload of a send entry in bytes
 * @null_key: local key of memory that reads as zeros at every address and drops
 *	all writes
 * @checksum_types: set of queue pair types that can fill in and check checksums:
 *	bit n stands for the type with number n in enum ib_uverbs_qp_type; 0 if
 *	there are none, as from drivers that do not know this member
 * @segmentation_types: set of queue pair types that can send TCP packets in
 *	segments, in the same way; a header has at most @max_inline_data bytes
 * @reserved_2c: 0
 */
struct vrnic_alloc_context_resp {
	__u32 comp_mask;
	__u32 doorbell_length;
	__aligned_u64 doorbell_offset;
	__aligned_u64 notify_offset;
	__u32 notify_length;
	__u32 max_inline_data;
	__u32 null_key;
	__u32 checksum_types;
	__u32 segmentation_types;
	__u8 reserved_2c[4];
};

/**
 * struct vrnic_query_device_resp - response of QUERY_DEVICE
 * @comp_mask: 0
 * @min_rate_limit: smallest rate limit of a queue pair in kbit/s
 * @max_rate_limit: largest rate limit of a queue pair in kbit/s, or 0 if there
 *	are no rate limits
 * @rate_limit_types: set of queue pair types that can have a rate limit: bit n
 *	stands for the type with number n in enum ib_uverbs_qp_type
 * @max_segmented_length: maximum payload of a send in segments in bytes, or 0
 *	if there are none
 * @segmentation_types: set of queue pair types that can send in segments, in the
 *	same way
 * @hash_fields: set of fields that can be in the hash of receive scaling, with
 *	the values of enum ibv_rx_hash_fields in libibverbs; 0 if there is none, as
 *	from drivers that do not know this member
 * @reserved_1c: 0
 */
struct vrnic_query_device_resp {
	__u32 comp_mask;
	__u32 min_rate_limit;
	__u32 max_rate_limit;
	__u32 rate_limit_types;
	__u32 max_segmented_length;
	__u32 segmentation_types;
	__u32 hash_fields;
	__u8 reserved_1c[4];
};

/**
 * struct vrnic_query_clock_resp - time of the device's clock
 * @comp_mask: 0
 * @reserved_20: 0
 * @time: time in nanoseconds on the clock of completion timestamps
 */
struct vrnic_query_clock_resp {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__aligned_u64 time;
};

/**
 * struct vrnic_query_dm_resp - location of a device memory buffer
 * @comp_mask: 0
 * @reserved_20: 0
 * @map_offset: mmap() offset of the buffer
 * @map_length: length of that mapping in bytes, whole pages; the buffer is at
 *	its start
 * @length: length of the buffer in bytes
 */
struct vrnic_query_dm_resp {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__aligned_u64 map_offset;
	__aligned_u64 map_length;
	__aligned_u64 length;
};

/**
 * struct vrnic_query_comp_cntr_resp - location of the counts of a completion
 *	counter
 * @comp_mask: 0
 * @reserved_20: 0
 * @map_offset: mmap() offset of the counts: the number of completions and the
 *	number of errors, each a little-endian __u64
 * @map_length: length of that mapping in bytes, whole pages; the counts are at
 *	its start
 */
struct vrnic_query_comp_cntr_resp {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__aligned_u64 map_offset;
	__aligned_u64 map_length;
};

/**
 * struct vrnic_ring - layout of a ring in its buffer
 * @header_offset: byte offset of the ring's header, a multiple of 128
 * @entries_offset: byte offset of the first entry, a multiple of @stride
 * @entries: number of entries, a power of two; 0, like all other members, if
 *	the ring is absent
 * @stride: distance of two entries in bytes, a power of two from 16 to 1024
 */
struct vrnic_ring {
	__u32 header_offset;
	__u32 entries_offset;
	__u32 entries;
	__u32 stride;
};

/**
 * struct vrnic_create_cq_req - request of CREATE_CQ and RESIZE_CQ
 * @comp_mask: 0
 * @reserved_20: 0
 * @buf_addr: address of the buffer with the ring, a multiple of the page size
 * @buf_length: length of the buffer in bytes
 * @ring: the ring, with a stride of 64 and at least as many entries as
 *	requested
 */
struct vrnic_create_cq_req {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__aligned_u64 buf_addr;
	__aligned_u64 buf_length;
	struct vrnic_ring ring;
};

/**
 * struct vrnic_create_cq_resp - response of CREATE_CQ
 * @comp_mask: 0
 * @cqn: number of the completion queue
 */
struct vrnic_create_cq_resp {
	__u32 comp_mask;
	__u32 cqn;
};

/**
 * struct vrnic_create_qp_req - request of CREATE_QP
 * @comp_mask: 0
 * @reserved_20: 0
 * @buf_addr: address of the buffer with both rings, a multiple of the page size
 * @buf_length: length of the buffer in bytes
 * @sq: send queue, with entries and a stride that suffice for the requested
 *	sizes
 * @rq: receive queue, likewise; absent if no receives were requested
 */
struct vrnic_create_qp_req {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__aligned_u64 buf_addr;
	__aligned_u64 buf_length;
	struct vrnic_ring sq;
	struct vrnic_ring rq;
};

/**
 * struct vrnic_create_scaling_qp_req - request of CREATE_QP with an indirection
 *	table
 * @comp_mask: 0
 * @fields: set of fields in the input of the hash, of those in @hash_fields of
 *	struct vrnic_query_device_resp
 * @key: key of the Toeplitz hash
 */
struct vrnic_create_scaling_qp_req {
	__u32 comp_mask;
	__u32 fields;
	__u8 key[40];
};

/**
 * struct vrnic_create_qp_resp - response of CREATE_QP and CREATE_WQ, but not of
 *	CREATE_QP with an indirection table
 * @comp_mask: 0
 * @slot: doorbell slot of the queue pair in the context
 */
struct vrnic_create_qp_resp {
	__u32 comp_mask;
	__u32 slot;
};

/**
 * struct vrnic_modify_qp_req - request of MODIFY_QP; may be left out
 * @comp_mask: 0
 * @max_burst: with IB_QP_RATE_LIMIT, number of bytes that may be sent without a
 *	pause; 0 lets the device choose
 * @typical_packet: with IB_QP_RATE_LIMIT, length of a typical packet in bytes;
 *	0 means the MTU of the port
 * @reserved_50: 0
 */
struct vrnic_modify_qp_req {
	__u32 comp_mask;
	__u32 max_burst;
	__u16 typical_packet;
	__u8 reserved_50[6];
};

/**
 * struct vrnic_create_srq_req - request of CREATE_SRQ, of MODIFY_SRQ when it
 *	resizes the queue, and of CREATE_WQ
 * @comp_mask: 0
 * @reserved_20: 0
 * @buf_addr: address of the buffer with the ring, a multiple of the page size
 * @buf_length: length of the buffer in bytes
 * @ring: the ring, with entries and a stride that suffice for the requested
 *	sizes; if it replaces another ring, it already contains all receives
 *	that have not been taken
 */
struct vrnic_create_srq_req {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__aligned_u64 buf_addr;
	__aligned_u64 buf_length;
	struct vrnic_ring ring;
};

/**
 * struct vrnic_create_srq_resp - response of CREATE_SRQ
 * @comp_mask: 0
 * @srqn: number of the shared receive queue
 */
struct vrnic_create_srq_resp {
	__u32 comp_mask;
	__u32 srqn;
};

/**
 * struct vrnic_create_ah_resp - response of CREATE_AH
 * @comp_mask: 0
 * @reserved_20: 0
 * @address: address vector, to be copied verbatim into send entries
 */
struct vrnic_create_ah_resp {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__u8 address[32];
};

#endif /* VRNIC_ABI_USER_H */
