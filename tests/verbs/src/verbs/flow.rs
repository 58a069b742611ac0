// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Flows of raw packets, and their counters.

use std::mem::offset_of;
use std::sync::Arc;

use super::{Context, Errno, Qp, Result, destroyed, object, status};
use crate::ffi::{
    ibv_counted_flow, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow,
    ibv_flow_eth_filter, ibv_flow_spec_counter_action,
};

/// What a library without these operations answers.
const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

/// `IBV_FLOW_SPEC_ETH` and `IBV_FLOW_SPEC_ACTION_COUNT`
const SPEC_ETH: i32 = 0x20;
const SPEC_ACTION_COUNT: i32 = 0x1003;

/// Counters of flows, of which the first is that of packets, and the second that of bytes.
#[derive(Debug)]
pub struct Counters {
    raw: *mut ibv_counters,
    context: Arc<Context>,
}

impl Counters {
    /// Creates counters of packets and bytes.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        let counters = Self::unchosen(context)?;
        for index in 0..2 {
            counters.choose(index)?;
        }
        Ok(counters)
    }

    /// Creates counters that nobody has chosen yet.
    pub fn unchosen(context: &Arc<Context>) -> Result<Self> {
        let extended = context.extended().ok_or(UNSUPPORTED)?;
        let mut attr = ibv_counters_init_attr { comp_mask: 0 };
        // SAFETY: the context is open, and the attributes are complete.
        let raw = unsafe {
            let create = (*extended).create_counters.ok_or(UNSUPPORTED)?;
            object(create(context.raw, &raw mut attr))?
        };
        Ok(Counters {
            raw,
            context: context.clone(),
        })
    }

    /// Chooses the counter with this number, which is then read at the same place.
    pub fn choose(&self, counter: i32) -> Result<()> {
        let extended = self.context.extended().ok_or(UNSUPPORTED)?;
        let mut attr = ibv_counter_attach_attr {
            counter_desc: counter,
            index: counter.unsigned_abs(),
            comp_mask: 0,
        };
        // SAFETY: the counters live, and the attributes are complete.
        status(unsafe {
            let attach = (*extended).attach_counters_point_flow.ok_or(UNSUPPORTED)?;
            attach(self.raw, &raw mut attr, std::ptr::null_mut())
        })
    }

    /// Returns packets and bytes.
    pub fn read(&self) -> Result<[u64; 2]> {
        let extended = self.context.extended().ok_or(UNSUPPORTED)?;
        let mut values = [0; 2];
        // SAFETY: the counters live, and there are two values.
        status(unsafe {
            let read = (*extended).read_counters.ok_or(UNSUPPORTED)?;
            read(self.raw, values.as_mut_ptr(), 2, 0)
        })?;
        Ok(values)
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        if let Some(extended) = self.context.extended() {
            // SAFETY: this is the last use of the counters.
            let rc = unsafe { (*extended).destroy_counters.map_or(0, |it| it(self.raw)) };
            destroyed("counters object", rc);
        }
    }
}

/// A flow of frames to an address with an Ethertype, which has counters.
#[derive(Debug)]
pub struct Flow<'a> {
    raw: *mut ibv_flow,
    qp: &'a Qp,
    _counters: &'a Counters,
}

impl<'a> Flow<'a> {
    /// Creates a flow to a queue pair for raw packets.
    pub fn new(qp: &'a Qp, counters: &'a Counters, mac: [u8; 6], ether_type: u16) -> Result<Self> {
        let extended = qp.pd.context().extended().ok_or(UNSUPPORTED)?;
        let filter = |dst_mac, ether_type: u16| ibv_flow_eth_filter {
            dst_mac,
            ether_type: ether_type.to_be(),
            ..Default::default()
        };
        let spec_size =
            offset_of!(ibv_counted_flow, count) - offset_of!(ibv_counted_flow, eth_type);
        let mut attr = ibv_counted_flow {
            comp_mask: 0,
            kind: 0,
            size: size_of::<ibv_counted_flow>() as u16,
            priority: 0,
            num_of_specs: 2,
            port: 1,
            flags: 0,
            eth_type: SPEC_ETH,
            eth_size: spec_size as u16,
            eth_val: filter(mac, ether_type),
            eth_mask: filter([0xff; 6], u16::MAX),
            count: ibv_flow_spec_counter_action {
                kind: SPEC_ACTION_COUNT,
                size: size_of::<ibv_flow_spec_counter_action>() as u16,
                counters: counters.raw,
            },
        };
        // SAFETY: the queue pair and the counters live; the specifications follow the attributes, and say how long they
        // are.
        let raw = unsafe {
            let create = (*extended).ibv_create_flow.ok_or(UNSUPPORTED)?;
            object(create(qp.raw, &raw mut attr))?
        };
        Ok(Flow {
            raw,
            qp,
            _counters: counters,
        })
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        if let Some(extended) = self.qp.pd.context().extended() {
            // SAFETY: this is the last use of the flow.
            let rc = unsafe { (*extended).ibv_destroy_flow.map_or(0, |it| it(self.raw)) };
            destroyed("flow", rc);
        }
    }
}
