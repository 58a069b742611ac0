// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Requests of a flow.

use super::{Flow, Message, Posted};
use crate::plan::{Kind, Op, Wrong};
use vrnic_engine::testing::Send;
use vrnic_wire::{
    completion::Opcode,
    memory::access,
    qp::QpType,
    work::{SendOpcode, placement, send_flags},
};

/// Q_Key of all datagrams.
pub const QKEY: u32 = 0x1234;

impl Flow {
    /// Returns a request, and records its expected results.
    pub(super) fn request(&mut self, side: usize, slot: usize, op: Op) -> Send {
        let (layout, name) = (self.layout, self.name(side, slot));
        let address = self.address(1 - side);
        let [first, second] = &mut self.ends;
        let (own, peer) = if side == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let Op {
            mut kind,
            mut length,
            ..
        } = op;
        let window = peer.window.as_mut();
        let given = window.as_ref().filter(|window| window.is_given);
        let (stale, key) = (
            window
                .as_ref()
                .filter(|window| window.is_stale)
                .map(|window| window.grant.key()),
            given.map(|window| window.grant.key()),
        );
        // If there is nothing to invalidate, it is a plain send.
        let invalidates = key.filter(|_| kind == Kind::SendInvalidate);
        if kind == Kind::SendInvalidate && invalidates.is_none() {
            kind = Kind::Send;
        }
        let rkey = key.filter(|_| op.window).unwrap_or(peer.mr.key);
        let remote = |offset: usize| (peer.mr.iova + offset as u64, rkey);
        let local = |offset: usize| (own.mr.clone(), offset);
        let mut fetches = 0;
        let mut fences = op.fence;
        let source = local(layout.source(slot));
        let write = |opcode: SendOpcode| {
            let (address, key) = remote(layout.written(slot));
            Send::new(name, opcode).rdma(address, key)
        };
        let (mut send, memory, opcode) = match kind {
            Kind::Send => (
                Send::new(name, SendOpcode::Send),
                Some(source),
                Opcode::Send,
            ),
            Kind::SendImmediate => {
                let send = Send::new(name, SendOpcode::SendWithImmediate).immediate(slot as u32);
                (send, Some(source), Opcode::Send)
            }
            Kind::SendInvalidate => {
                // Earlier requests that use the window must have completed.
                fences = true;
                let send = Send::new(name, SendOpcode::SendWithInvalidate);
                let send = send.immediate(invalidates.unwrap_or_default());
                (send, Some(source), Opcode::Send)
            }
            Kind::Write => (write(SendOpcode::Write), Some(source), Opcode::Write),
            Kind::WriteImmediate => {
                let send = write(SendOpcode::WriteWithImmediate).immediate(slot as u32);
                (send, Some(source), Opcode::Write)
            }
            Kind::Read => {
                let (address, key) = remote(layout.source(slot));
                let send = Send::new(name, SendOpcode::Read).rdma(address, key);
                (send, Some(local(layout.read(slot))), Opcode::Read)
            }
            Kind::Add | Kind::Swap | Kind::AtomicWrite => {
                let (address, key) = remote(layout.word());
                fetches = own.word;
                own.word += 1;
                length = 8;
                let memory = Some(local(layout.fetched(slot)));
                match kind {
                    Kind::Add => {
                        let send = Send::new(name, SendOpcode::FetchAdd);
                        (send.atomic(address, key, 1, 0), memory, Opcode::FetchAdd)
                    }
                    Kind::Swap => {
                        let send = Send::new(name, SendOpcode::CompareSwap);
                        let send = send.atomic(address, key, fetches, own.word);
                        (send, memory, Opcode::CompareSwap)
                    }
                    _ => {
                        length = 0;
                        let send = Send::new(name, SendOpcode::AtomicWrite);
                        let send = send.atomic(address, key, 0, own.word);
                        (send, None, Opcode::AtomicWrite)
                    }
                }
            }
            Kind::Flush => {
                // Windows do not allow flushes.
                let address = peer.mr.iova + layout.written(0) as u64;
                let send = Send::new(name, SendOpcode::Flush);
                let length_flushed = layout.slot as u32;
                let send = send.flush(address, peer.mr.key, length_flushed, placement::GLOBAL);
                length = 0;
                (send, None, Opcode::Flush)
            }
            Kind::Bind => {
                length = 0;
                let (grant, is_bound) = own.scratch.as_mut().expect("a window for it");
                *is_bound = !*is_bound;
                if *is_bound {
                    let (send, opcode) =
                        grant.give(name, &own.mr, layout.length(), access::REMOTE_READ);
                    (send, None, opcode)
                } else {
                    (grant.take(name), None, Opcode::LocalInvalidate)
                }
            }
            Kind::Wrong(wrong) => {
                // A wrong key is not an error if there is nothing to transfer.
                length = length.max(2);
                let (mut address, mut key) = remote(layout.written(slot));
                let (mut mr, offset) = source;
                match wrong {
                    Wrong::RemoteKey => key = peer.mr.key ^ 0x10,
                    Wrong::StaleKey => key = stale.unwrap_or(peer.mr.key ^ 0x20),
                    Wrong::RemoteBounds => {
                        address = peer.mr.iova + peer.mr.arena.length() as u64 - 1;
                    }
                    Wrong::LocalKey => mr.key ^= 0x10,
                }
                let send = Send::new(name, SendOpcode::Write).rdma(address, key);
                (send, Some((mr, offset)), Opcode::Write)
            }
        };
        match self.plan.qp_type {
            QpType::UnreliableDatagram => send = send.datagram(address, peer.qp.qpn, QKEY),
            QpType::XrcInitiator if kind != Kind::Bind => send = send.to_srq(peer.srqn),
            _ => {}
        }
        if let Some((mr, offset)) = memory {
            let writes = !matches!(kind, Kind::Read | Kind::Add | Kind::Swap | Kind::Wrong(_));
            if op.inline && writes && length <= 128 {
                send = send.inline(&mr.arena.get(offset, length));
            } else {
                let parts = op.elements.min(length).max(1);
                let each = length / parts;
                for part in 0..parts {
                    let begin = part * each;
                    let end = if part + 1 == parts {
                        length
                    } else {
                        begin + each
                    };
                    send = send.element(mr.sge(offset + begin, end - begin));
                }
            }
        }
        if invalidates.is_some()
            && let Some(window) = peer.window.as_mut()
        {
            window.is_given = false;
            window.is_stale = true;
        }
        if kind.takes_receive() {
            own.messages.push(Message {
                kind,
                length,
                slot,
                immediate: invalidates.unwrap_or(slot as u32),
            });
        }
        let signaled = op.signaled || self.plan.signal_all;
        own.posted.push(Posted {
            name,
            kind,
            length,
            slot,
            signaled,
            opcode,
            fetches,
        });
        if !op.signaled {
            send = send.unsignaled();
        }
        if fences {
            send = send.flags(send_flags::FENCE);
        }
        if op.solicited {
            send = send.flags(send_flags::SOLICITED);
        }
        send
    }
}
