/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of the driver of virtio RDMA devices, which is in Rust.
 */

#undef TRACE_SYSTEM
#define TRACE_SYSTEM vrnic

#if !defined(_TRACE_VRNIC_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_VRNIC_H

#include <linux/device.h>
#include <linux/tracepoint.h>

/* A command came back, with the error that its caller gets. */
TRACE_EVENT(vrnic_command,
	TP_PROTO(struct device *dev, u16 code, int error, u64 ns),
	TP_ARGS(dev, code, error, ns),
	TP_STRUCT__entry(
		__string(dev, dev_name(dev))
		__field(u64, ns)
		__field(int, error)
		__field(u16, code)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->ns = ns;
		__entry->error = error;
		__entry->code = code;
	),
	TP_printk("%s code=%#x error=%d ns=%llu", __get_str(dev), __entry->code,
		  __entry->error, __entry->ns)
);

/* An asynchronous event, before its handler runs. */
TRACE_EVENT(vrnic_event,
	TP_PROTO(struct device *dev, u16 type, u32 number),
	TP_ARGS(dev, type, number),
	TP_STRUCT__entry(
		__string(dev, dev_name(dev))
		__field(u32, number)
		__field(u16, type)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->number = number;
		__entry->type = type;
	),
	TP_printk("%s type=%u number=%u", __get_str(dev), __entry->type,
		  __entry->number)
);

/* An event of a completion queue, in the interrupt of its vector. */
TRACE_EVENT(vrnic_completion_event,
	TP_PROTO(struct device *dev, u32 vector, u32 cqn),
	TP_ARGS(dev, vector, cqn),
	TP_STRUCT__entry(
		__string(dev, dev_name(dev))
		__field(u32, vector)
		__field(u32, cqn)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->vector = vector;
		__entry->cqn = cqn;
	),
	TP_printk("%s vector=%u cqn=%u", __get_str(dev), __entry->vector,
		  __entry->cqn)
);

/* The kernel posted work; the device is woken unless it looks by itself. */
TRACE_EVENT(vrnic_doorbell,
	TP_PROTO(struct device *dev, u32 slot, bool wakes),
	TP_ARGS(dev, slot, wakes),
	TP_STRUCT__entry(
		__string(dev, dev_name(dev))
		__field(u32, slot)
		__field(bool, wakes)
	),
	TP_fast_assign(
		__assign_str(dev);
		__entry->slot = slot;
		__entry->wakes = wakes;
	),
	TP_printk("%s slot=%u wakes=%d", __get_str(dev), __entry->slot,
		  __entry->wakes)
);

#endif /* _TRACE_VRNIC_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
