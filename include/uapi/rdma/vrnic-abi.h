/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause) */
/*
 * User ABI of vrnic, the virtio RDMA driver: the driver's part of the uverbs
 * commands. rust/wire/abi.rs has the same
 * structures.
 */
#ifndef VRNIC_ABI_USER_H
#define VRNIC_ABI_USER_H

#include <linux/types.h>

/* Increment this value if any change breaks existing user-space programs. */
#define VRNIC_ABI_VERSION 1

/*
 * Provisional: enum rdma_driver_id has no value for this driver yet. Providers
 * may match the driver by the name of its devices, "vrnic" and a number, too.
 */
#define VRNIC_DRIVER_ID 0x76726e

/*
 * Rules for all structures: comp_mask comes first and says which of the members
 * added later are valid (0 where none are named); reserved members
 * are 0; the kernel refuses a request that breaks one of the two. Addresses are
 * those of the calling process.
 */

/*
 * What is added to the methods of uverbs, for processes that import objects:
 * QUERY_CONTEXT fills attribute 0x1000 with a struct vrnic_alloc_context_resp;
 * method 0x1000 of UVERBS_OBJECT_PD does nothing but fail if its attribute
 * 0x1000, a handle, is that of no protection domain. And for all processes:
 * method 0x1000 of UVERBS_OBJECT_DEVICE fills attribute 0x1000 with a struct
 * vrnic_query_clock_resp; method 0x1000 of UVERBS_OBJECT_DM fills attribute
 * 0x1001 with a struct vrnic_query_dm_resp for the handle in attribute 0x1000.
 */

/**
 * struct vrnic_alloc_context_req - request of ALLOC_CONTEXT
 * @comp_mask: 0
 * @slots: doorbell slots of the context, so most queue pairs it can have: a
 *	power of two from 64 to 65536
 */
struct vrnic_alloc_context_req {
	__u32 comp_mask;
	__u32 slots;
};

/* Bit of comp_mask of struct vrnic_alloc_context_resp: null_key is valid. */
#define VRNIC_CONTEXT_NULL_KEY 0x1

/**
 * struct vrnic_alloc_context_resp - response of ALLOC_CONTEXT, and of
 *	QUERY_CONTEXT
 * @comp_mask: VRNIC_CONTEXT_NULL_KEY or 0
 * @doorbell_length: bytes of the doorbell page, or 0 if the device has no
 *	doorbells: then a queue pair is rung by POST_SEND without work requests
 * @doorbell_offset: offset to give to mmap() to map the doorbell page
 * @notify_offset: offset to give to mmap() to map the notify area
 * @notify_length: bytes of that mapping, whole pages, 256 + slots / 8 or more;
 *	all processes that have the context share the area
 * @max_inline_data: most bytes of payload that a send entry may hold
 * @null_key: local key of memory that is all zeros, at every address, and keeps
 *	nothing of what is written there
 * @reserved_24: 0
 */
struct vrnic_alloc_context_resp {
	__u32 comp_mask;
	__u32 doorbell_length;
	__aligned_u64 doorbell_offset;
	__aligned_u64 notify_offset;
	__u32 notify_length;
	__u32 max_inline_data;
	__u32 null_key;
	__u8 reserved_24[4];
};

/**
 * struct vrnic_query_clock_resp - what the clock of the device shows
 * @comp_mask: 0
 * @reserved_20: 0
 * @time: nanoseconds on the clock by which completions are stamped
 */
struct vrnic_query_clock_resp {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__aligned_u64 time;
};

/**
 * struct vrnic_query_dm_resp - where a buffer in device memory is
 * @comp_mask: 0
 * @reserved_20: 0
 * @map_offset: offset to give to mmap() to map the buffer
 * @map_length: bytes of that mapping, whole pages, of which the buffer is the
 *	beginning
 * @length: bytes of the buffer
 */
struct vrnic_query_dm_resp {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__aligned_u64 map_offset;
	__aligned_u64 map_length;
	__aligned_u64 length;
};

/**
 * struct vrnic_ring - where a ring stands in its buffer, and its shape
 * @header_offset: byte offset of the ring's header, a multiple of 128
 * @entries_offset: byte offset of the first entry, a multiple of @stride
 * @entries: entries, a power of two; 0, as all others, if the ring is absent
 * @stride: bytes from one entry to the next, a power of two from 16 to 1024
 */
struct vrnic_ring {
	__u32 header_offset;
	__u32 entries_offset;
	__u32 entries;
	__u32 stride;
};

/**
 * struct vrnic_create_cq_req - request of CREATE_CQ, and of RESIZE_CQ
 * @comp_mask: 0
 * @reserved_20: 0
 * @buf_addr: buffer that holds the ring, a multiple of the page size
 * @buf_length: bytes of the buffer
 * @ring: the ring; its stride is 64, its entries are at least those asked for
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
 * @buf_addr: buffer that holds both rings, a multiple of the page size
 * @buf_length: bytes of the buffer
 * @sq: send queue; entries and stride hold at least what was asked for
 * @rq: receive queue; likewise. Absent if no receives were asked for.
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
 * struct vrnic_create_qp_resp - response of CREATE_QP
 * @comp_mask: 0
 * @slot: doorbell slot of the queue pair in the context
 */
struct vrnic_create_qp_resp {
	__u32 comp_mask;
	__u32 slot;
};

/**
 * struct vrnic_create_srq_req - request of CREATE_SRQ, and of MODIFY_SRQ if
 *	that resizes
 * @comp_mask: 0
 * @reserved_20: 0
 * @buf_addr: buffer that holds the ring, a multiple of the page size
 * @buf_length: bytes of the buffer
 * @ring: the ring; entries and stride hold at least what was asked for. If it
 *	replaces another one, what is not taken stands in it already.
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
 * @address: address vector, to be copied as it is into the send entries
 */
struct vrnic_create_ah_resp {
	__u32 comp_mask;
	__u8 reserved_20[4];
	__u8 address[32];
};

#endif /* VRNIC_ABI_USER_H */
