// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Records the objects of a device, so that all can be destroyed at the end.

use vrnic_engine::{
    Rnic,
    testing::{Connection, Guest},
};
use vrnic_wire::command::{
    DeallocateMw, DeregisterMr, DestroyCompletionCounter, DestroyContext, DestroyCounterSet,
    DestroyCq, DestroyPd, DestroyQp, DestroySrq, DestroyXrcd,
};

/// Numbers of objects that exist.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Contexts.
    pub contexts: Vec<u32>,
    /// Protection domains.
    pub pds: Vec<u32>,
    /// Memory regions: protection domain and key.
    pub mrs: Vec<(u32, u32)>,
    /// Memory windows: protection domain and key.
    pub mws: Vec<(u32, u32)>,
    /// Completion queues.
    pub cqs: Vec<u32>,
    /// Queue pairs.
    pub qps: Vec<u32>,
    /// Shared receive queues.
    pub srqs: Vec<u32>,
    /// Counter sets.
    pub counter_sets: Vec<u32>,
    /// Completion counters.
    pub completion_counters: Vec<u32>,
    /// XRC domains.
    pub xrcds: Vec<u32>,
    /// Flows, which go with their queue pairs.
    pub flows: Vec<u32>,
}

impl Objects {
    /// Creates a record with the context and the protection domain of a guest.
    pub fn of(guest: &Guest) -> Self {
        Self {
            contexts: vec![guest.context],
            pds: vec![guest.pd],
            ..Self::default()
        }
    }

    /// Adds the objects of one side of a connection. `pd` is the protection domain of its region.
    pub fn add_side(&mut self, pd: u32, c: &Connection, side: usize) {
        self.qps.push(c.qps[side].qpn);
        self.cqs
            .extend([c.send_cqs[side].cqn, c.recv_cqs[side].cqn]);
        self.mrs.push((pd, c.mrs[side].key));
    }

    /// Destroys everything and checks that the device has nothing left.
    pub fn destroy(self, guest: &Guest, rnic: &mut Rnic) {
        let reserved = 0.into();
        // One with a table is younger than the queues in it, which cannot be destroyed before.
        for qpn in self.qps.into_iter().rev() {
            let qpn = qpn.into();
            let done = guest.command(rnic, DestroyQp { qpn, reserved });
            done.expect("queue pair");
        }
        for counter_set in self.counter_sets {
            let counter_set = counter_set.into();
            let request = DestroyCounterSet {
                counter_set,
                reserved,
            };
            guest.command(rnic, request).expect("counter set");
        }
        for counter in self.completion_counters {
            let counter = counter.into();
            let request = DestroyCompletionCounter { counter, reserved };
            guest.command(rnic, request).expect("completion counter");
        }
        for srqn in self.srqs {
            let srqn = srqn.into();
            let done = guest.command(rnic, DestroySrq { srqn, reserved });
            done.expect("shared receive queue");
        }
        for xrcdn in self.xrcds {
            let xrcdn = xrcdn.into();
            let done = guest.command(rnic, DestroyXrcd { xrcdn, reserved });
            done.expect("XRC domain");
        }
        for cqn in self.cqs {
            let cqn = cqn.into();
            let done = guest.command(rnic, DestroyCq { cqn, reserved });
            done.expect("completion queue");
        }
        for (pd, key) in self.mws {
            let (pd, key) = (pd.into(), key.into());
            let done = guest.command(rnic, DeallocateMw { pd, key });
            done.expect("window");
        }
        for (pd, key) in self.mrs {
            let (pd, key) = (pd.into(), key.into());
            let done = guest.command(rnic, DeregisterMr { pd, key });
            done.expect("region");
        }
        for pd in self.pds {
            let pd = pd.into();
            let done = guest.command(rnic, DestroyPd { pd, reserved });
            done.expect("protection domain");
        }
        for context in self.contexts {
            let context = context.into();
            let done = guest.command(rnic, DestroyContext { context, reserved });
            done.expect("context");
        }
        let left = rnic.snapshot();
        assert_eq!(
            (
                left.contexts,
                left.pds,
                left.mrs,
                left.mws,
                left.cqs,
                left.qps,
                left.srqs
            ),
            (0, 0, 0, 0, 0, 0, 0)
        );
        assert_eq!(
            (
                left.translations,
                left.attachments,
                left.counter_sets,
                left.completion_counters,
                left.xrcds
            ),
            (0, 0, 0, 0, 0)
        );
    }
}
