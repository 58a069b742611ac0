// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! One end of unreliable datagrams.

use super::{
    guest::{Cq, Mr, Qp, QpOptions, Send},
    world::World,
};
use vrnic_wire::qp::{QpAttributes, QpType};

/// A queue pair for datagrams that is ready to send, with the objects that it needs.
#[derive(Debug)]
pub struct DatagramEnd {
    /// Its node.
    pub node: usize,
    /// The queue pair.
    pub qp: Qp,
    /// Completion queue of sends.
    pub send_cq: Cq,
    /// Completion queue of receives.
    pub recv_cq: Cq,
    /// A region with all rights.
    pub mr: Mr,
}

impl DatagramEnd {
    /// Creates a queue pair of `node` with a type for datagrams, and a region of `mr_length` bytes.
    pub fn new(
        world: &mut World,
        node: usize,
        qp_type: QpType,
        qkey: u32,
        mr_length: usize,
    ) -> Self {
        let options = QpOptions {
            qp_type,
            ..QpOptions::default()
        };
        Self::with_options(world, node, &options, qkey, mr_length)
    }

    /// Creates a queue pair with these options, of which the number of entries is ignored.
    pub fn with_options(
        world: &mut World,
        node: usize,
        options: &QpOptions,
        qkey: u32,
        mr_length: usize,
    ) -> Self {
        let place = &mut world.nodes[node];
        let (guest, rnic) = (&mut place.guest, &mut place.rnic);
        let send_cq = guest.cq(rnic, 64, 0);
        let recv_cq = guest.cq(rnic, 64, 1);
        let options = QpOptions {
            entries: 16,
            ..*options
        };
        let qp = guest
            .try_qp(rnic, &options, send_cq.cqn, recv_cq.cqn)
            .expect("qp");
        let mr = guest.full_mr(rnic, mr_length);
        let attributes = QpAttributes {
            port: 1,
            qkey: qkey.into(),
            sq_psn: 5.into(),
            ..QpAttributes::default()
        };
        world.bring_up(node, qp.qpn, attributes, options.qp_type);
        Self {
            node,
            qp,
            send_cq,
            recv_cq,
            mr,
        }
    }

    /// Posts a send.
    pub fn send(&mut self, world: &mut World, send: &Send) {
        let node = &mut world.nodes[self.node];
        assert!(node.guest.post_send(&mut node.rnic, &mut self.qp, send));
    }

    /// Posts a receive of `length` bytes at `offset` of the region.
    pub fn receive(&mut self, world: &mut World, wr_id: u64, offset: usize, length: usize) {
        let node = &mut world.nodes[self.node];
        let sge = self.mr.sge(offset, length);
        assert!(
            node.guest
                .post_receive(&mut node.rnic, &mut self.qp, wr_id, &[sge])
        );
    }
}
