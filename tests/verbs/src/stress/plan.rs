// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The plan of one direction of one QP: batches of operations, a pure function of the agreed [`Limits`].
//!
//! Each batch ends with a `SEND_WITH_IMM`, so that its arrival tells the responder that all memory effects of the batch
//! are there, and that the initiator no longer reads. Within a batch no two operations touch the same bytes, except a
//! READ of what an earlier WRITE of the batch wrote, and a fenced SEND of what a READ fetched, which the standard
//! orders.

use crate::rng::{Rng, mix};

/// Private atomic words per direction and QP.
pub const WORDS: usize = 8;
/// Largest gap left before a piece of memory, and the guard behind the last one.
pub const GAP: u64 = 64;

/// What both ends agree on before they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Seed of the run
    pub seed: u64,
    /// Longest message in bytes
    pub max_size: usize,
    /// Most operations in a batch, the closing SEND not counted
    pub batch_ops: usize,
    /// Most scatter/gather entries of a send request
    pub send_sge: usize,
    /// Most scatter/gather entries of a receive request
    pub recv_sge: usize,
    /// Most bytes sent inline
    pub inline: usize,
    /// Depth of the send queues
    pub sq_depth: usize,
    /// Path MTU in bytes; sizes near its multiples are favoured
    pub mtu: usize,
    /// Whether the device has atomics
    pub atomics: bool,
    /// Whether what is written is also flushed
    pub flush: bool,
    /// Whether words are also written at once
    pub atomic_write: bool,
}

impl Limits {
    /// Bytes of one arena: room for two messages of full size and the gaps of all pieces.
    #[must_use]
    pub fn arena(&self) -> usize {
        // Per operation: a gap before each piece, an atomic's operand, slack of a receive.
        let overhead =
            self.send_sge.max(self.recv_sge).max(1) * GAP as usize + 8 + 2 * GAP as usize;
        (2 * self.max_size + (self.batch_ops + 1) * overhead + GAP as usize).next_multiple_of(4096)
    }

    /// Bytes of the static region that READs fetch from.
    #[must_use]
    pub fn source(&self) -> usize {
        (2 * self.max_size + 4096).next_multiple_of(4096)
    }

    /// Receive requests that a batch can consume.
    #[must_use]
    pub fn receives(&self) -> usize {
        self.batch_ops + 1
    }
}

/// Bytes in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte
    pub offset: usize,
    /// Length, possibly 0
    pub len: usize,
}

/// Content of a message: payload `key` from its byte `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Names the payload
    pub key: u64,
    /// First byte
    pub from: usize,
}

/// What an operation does to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND, with immediate data or not
    Send(Option<u32>),
    /// RDMA WRITE into the peer's remote arena, with immediate data or not
    Write {
        /// Offset in the arena
        at: usize,
        /// Immediate data
        imm: Option<u32>,
    },
    /// ATOMIC_WRITE of a word of the peer's remote arena
    AtomicWrite {
        /// Offset in the arena
        at: usize,
    },
    /// FLUSH of what the batch wrote before, or of all of the peer's remote arenas
    Flush {
        /// Offset in the arena, and bytes
        range: Option<(usize, usize)>,
    },
    /// RDMA READ of the peer's static source
    ReadSource {
        /// Offset in the source
        at: usize,
    },
    /// RDMA READ of what this batch wrote to the peer's remote arena
    ReadBack {
        /// Offset in the arena
        at: usize,
    },
    /// Compare and swap on a private word
    Cas {
        /// Index of the word
        word: usize,
        /// Value compared with
        compare: u64,
        /// Value stored on a match
        swap: u64,
        /// What the word held before
        before: u64,
    },
    /// Fetch and add on a private word
    FetchAdd {
        /// Index of the word
        word: usize,
        /// Summand
        add: u64,
        /// What the word held before
        before: u64,
    },
    /// Fetch and add on the word that all QPs of the direction share
    SharedAdd {
        /// Summand
        add: u64,
    },
}

impl Kind {
    /// Whether it consumes a receive request.
    #[must_use]
    pub fn receives(&self) -> bool {
        matches!(self, Kind::Send(_) | Kind::Write { imm: Some(_), .. })
    }

    /// Immediate data it carries.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        match self {
            Kind::Send(imm) | Kind::Write { imm, .. } => *imm,
            _ => None,
        }
    }

    /// Whether its result arrives in local memory.
    #[must_use]
    pub fn fetches(&self) -> bool {
        !matches!(
            self,
            Kind::Send(_) | Kind::Write { .. } | Kind::AtomicWrite { .. } | Kind::Flush { .. }
        )
    }

    /// Whether it is an atomic.
    #[must_use]
    pub fn atomic(&self) -> bool {
        matches!(
            self,
            Kind::Cas { .. } | Kind::FetchAdd { .. } | Kind::SharedAdd { .. }
        )
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it does
    pub kind: Kind,
    /// Message length in bytes
    pub len: usize,
    /// What the message holds; meaningless for atomics and flushes
    pub payload: Payload,
    /// Its memory in the initiator's local arena
    pub local: Vec<Piece>,
    /// Whether `local` is the destination of the READ before, fenced
    pub fenced: bool,
    /// Begins only after all READs before it: the closing SEND, since its arrival lets the responder change what they
    /// read (the standard orders no SEND after a READ without a fence)
    pub closes: bool,
    /// Memory of the receive request that it consumes, in the responder's receive arena
    pub recv: Vec<Piece>,
    /// Asks for a completion
    pub signalled: bool,
    /// Asks for a solicited event
    pub solicited: bool,
    /// Sent inline
    pub inline: bool,
}

/// A batch of operations, the last of which is the closing SEND.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Position in the stream
    pub number: u64,
    /// The operations
    pub ops: Vec<Op>,
    /// Bytes used of the local, receive and remote arena
    pub used: [usize; 3],
    /// Private words after the batch
    pub words: [u64; WORDS],
    /// Sum of what it adds to the shared word
    pub shared: u64,
}

/// Produces the batches of one direction of one QP.
#[derive(Clone, Debug)]
pub struct Planner {
    limits: Limits,
    rng: Rng,
    /// Decides on flushes and atomic writes, so that a plan without them is the same otherwise.
    placing: Rng,
    source_key: u64,
    next: u64,
    words: [u64; WORDS],
    unsignalled: usize,
}

/// Name of the payload that fills the static source of `side`.
#[must_use]
pub fn source_key(seed: u64, side: u64) -> u64 {
    mix(seed ^ mix(0x50u64 + side))
}

/// Hands out memory upwards. Messages may take two full sizes in all; gaps, slack and small operands come out of the
/// overhead that [`Limits::arena`] adds.
pub struct Arena {
    budget: usize,
    used: usize,
    spent: usize,
}

impl Arena {
    /// Memory for messages of `budget` bytes in all.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Arena {
            budget,
            used: 0,
            spent: 0,
        }
    }

    /// Bytes handed out, gaps counted.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// Longest message that the budget allows.
    fn room(&self) -> usize {
        self.budget.saturating_sub(self.spent)
    }

    fn take(&mut self, rng: &mut Rng, len: usize, align: usize) -> usize {
        let offset = (self.used + rng.below(GAP - 8) as usize).next_multiple_of(align);
        self.used = offset + len;
        self.spent += len;
        offset
    }

    /// Memory for a message of `len` bytes, in at most `most` pieces with gaps before them.
    pub fn pieces(&mut self, rng: &mut Rng, len: usize, most: usize) -> Vec<Piece> {
        let count = if len == 0 {
            rng.below(2) as usize
        } else {
            rng.range(1, most as u64) as usize
        };
        let mut cuts: Vec<usize> = (1..count.max(1))
            .map(|_| rng.below(len as u64 + 1) as usize)
            .collect();
        cuts.extend([0, len]);
        cuts.sort_unstable();
        let lens = cuts.windows(2).map(|w| w[1] - w[0]).take(count);
        lens.map(|len| Piece {
            offset: self.take(rng, len, 1),
            len,
        })
        .collect()
    }
}

impl Planner {
    /// The stream that `side` (0 or 1) initiates on its QP number `qp`.
    #[must_use]
    pub fn new(limits: Limits, side: u64, qp: usize) -> Self {
        Planner {
            limits,
            rng: Rng::new(&[limits.seed, side, qp as u64]),
            placing: Rng::new(&[limits.seed, side, qp as u64, 0xa19]),
            source_key: source_key(limits.seed, 1 - side),
            next: 0,
            words: [0; WORDS],
            unsignalled: 0,
        }
    }

    fn length(&mut self, most: usize) -> usize {
        let rng = &mut self.rng;
        let len = match rng.below(16) {
            0 => 0,
            1..=4 => rng.range(1, 64) as usize,
            5..=7 => {
                let near = self.limits.mtu * rng.range(1, 4) as usize;
                near + rng.below(3) as usize - 1
            }
            _ => {
                let bits = rng.range(0, u64::from(self.limits.max_size.ilog2()) + 1);
                rng.below(1 << bits) as usize
            }
        };
        len.min(most).min(self.limits.max_size)
    }

    /// The next batch.
    pub fn next_batch(&mut self) -> Batch {
        let limits = self.limits;
        let arena = || Arena::new(2 * limits.max_size);
        let (mut local, mut recv, mut remote) = (arena(), arena(), arena());
        let mut ops: Vec<Op> = Vec::new();
        let mut shared = 0_u64;
        let count = self.rng.range(1, limits.batch_ops as u64) as usize;
        for _ in 0..count {
            let most = local.room().min(recv.room()).min(remote.room());
            let len = self.length(most);
            let key = self.rng.next_u64();
            let mut payload = Payload { key, from: 0 };
            let imm = self.rng.one_in(2).then(|| self.rng.next_u64() as u32);
            let last_read = ops
                .last()
                .filter(|o| o.kind.fetches() && !o.kind.atomic())
                .cloned();
            let choice = self.rng.below(if limits.atomics { 12 } else { 9 });
            let mut fenced = None;
            let (kind, len) = match choice {
                0..=2 => match last_read {
                    Some(read) if read.len <= recv.room() => {
                        payload = read.payload;
                        fenced = Some(read.local);
                        (Kind::Send(imm), read.len)
                    }
                    _ => (Kind::Send(imm), len),
                },
                3..=5 => (
                    Kind::Write {
                        at: remote.take(&mut self.rng, len, 1),
                        imm,
                    },
                    len,
                ),
                6 | 7 => {
                    let at = self.rng.below((limits.source() - len) as u64 + 1) as usize;
                    payload = Payload {
                        key: self.source_key,
                        from: at,
                    };
                    (Kind::ReadSource { at }, len)
                }
                8 => {
                    let written: Vec<(usize, usize, Payload)> = ops
                        .iter()
                        .filter_map(|o| match o.kind {
                            Kind::Write { at, .. } if o.len <= local.room() => {
                                Some((at, o.len, o.payload))
                            }
                            _ => None,
                        })
                        .collect();
                    if written.is_empty() {
                        (Kind::Send(imm), len)
                    } else {
                        let (at, len, what) = self.rng.pick(&written);
                        payload = what;
                        (Kind::ReadBack { at }, len)
                    }
                }
                9 => {
                    let word = self.rng.below(WORDS as u64) as usize;
                    let before = self.words[word];
                    let compare = if self.rng.one_in(3) {
                        self.rng.next_u64()
                    } else {
                        before
                    };
                    let swap = self.rng.next_u64();
                    if compare == before {
                        self.words[word] = swap;
                    }
                    (
                        Kind::Cas {
                            word,
                            compare,
                            swap,
                            before,
                        },
                        8,
                    )
                }
                10 => {
                    let word = self.rng.below(WORDS as u64) as usize;
                    let (before, add) = (self.words[word], self.rng.next_u64());
                    self.words[word] = before.wrapping_add(add);
                    (Kind::FetchAdd { word, add, before }, 8)
                }
                _ => {
                    let add = self.rng.below(1 << 32);
                    shared = shared.wrapping_add(add);
                    (Kind::SharedAdd { add }, 8)
                }
            };
            let is_fenced = fenced.is_some();
            let local_pieces = match fenced {
                Some(pieces) => pieces,
                None if kind.atomic() => vec![Piece {
                    offset: local.take(&mut self.rng, 8, 8),
                    len: 8,
                }],
                None => local.pieces(&mut self.rng, len, limits.send_sge),
            };
            ops.push(self.finish(kind, len, payload, local_pieces, is_fenced, &mut recv));
        }
        let mut ops = self.place(ops, &mut remote);
        let imm = self.rng.next_u64() as u32;
        let payload = Payload {
            key: self.rng.next_u64(),
            from: 0,
        };
        let len = self.rng.below(9) as usize;
        let pieces = local.pieces(&mut self.rng, len, 1);
        let mut close = self.finish(
            Kind::Send(Some(imm)),
            len,
            payload,
            pieces,
            false,
            &mut recv,
        );
        close.closes = true;
        close.signalled = true;
        close.solicited = true;
        self.unsignalled = 0;
        ops.push(close);
        let number = self.next;
        self.next += 1;
        Batch {
            number,
            ops,
            used: [local.used, recv.used, remote.used],
            words: self.words,
            shared,
        }
    }

    /// Puts flushes and atomic writes behind some of the operations.
    fn place(&mut self, ops: Vec<Op>, remote: &mut Arena) -> Vec<Op> {
        let Limits {
            flush,
            atomic_write,
            ..
        } = self.limits;
        if !flush && !atomic_write {
            return ops;
        }
        let mut placed = Vec::new();
        let mut written = Vec::new();
        for op in ops {
            if let Kind::Write { at, .. } = op.kind {
                written.push((at, op.len));
            }
            placed.push(op);
            if !self.placing.one_in(3) {
                continue;
            }
            let flushes = flush && (!atomic_write || self.placing.one_in(2));
            let rng = &mut self.placing;
            let (kind, len) = if flushes {
                let range = (!written.is_empty() && !rng.one_in(4)).then(|| rng.pick(&written));
                (Kind::Flush { range }, 0)
            } else {
                let at = remote.take(rng, 8, 8);
                written.push((at, 8));
                (Kind::AtomicWrite { at }, 8)
            };
            let signalled = rng.one_in(3);
            placed.push(Op {
                kind,
                len,
                payload: Payload {
                    key: self.placing.next_u64(),
                    from: 0,
                },
                local: Vec::new(),
                fenced: false,
                closes: false,
                recv: Vec::new(),
                signalled,
                solicited: false,
                inline: false,
            });
        }
        // More of them than before stand between two that are signalled.
        let mut unsignalled = 0;
        for op in &mut placed {
            op.signalled |= unsignalled + 2 >= self.limits.sq_depth / 2;
            unsignalled = if op.signalled { 0 } else { unsignalled + 1 };
        }
        placed
    }

    fn finish(
        &mut self,
        kind: Kind,
        len: usize,
        payload: Payload,
        local: Vec<Piece>,
        fenced: bool,
        recv: &mut Arena,
    ) -> Op {
        let rng = &mut self.rng;
        let mut room = Vec::new();
        if kind.receives() {
            // A WRITE with immediate data leaves the receive buffers alone, whatever they are.
            let needed = if matches!(kind, Kind::Send(_)) {
                len
            } else {
                rng.below(32) as usize
            };
            let slack = rng.below(2) * rng.below(GAP);
            let capacity = needed + slack as usize;
            room = recv.pieces(rng, capacity, self.limits.recv_sge);
        }
        let signalled = rng.one_in(3) || self.unsignalled + 2 >= self.limits.sq_depth / 2;
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
        let inline = !fenced && !kind.fetches() && len <= self.limits.inline && rng.one_in(2);
        Op {
            kind,
            len,
            payload,
            local,
            fenced,
            closes: false,
            recv: room,
            signalled,
            solicited: rng.one_in(8),
            inline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(seed: u64) -> Limits {
        Limits {
            seed,
            max_size: 1 << 16,
            batch_ops: 24,
            send_sge: 4,
            recv_sge: 3,
            inline: 64,
            sq_depth: 16,
            mtu: 1024,
            atomics: true,
            flush: true,
            atomic_write: true,
        }
    }

    fn disjoint(mut ranges: Vec<(usize, usize)>, size: usize) {
        ranges.retain(|r| r.1 > 0);
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        if let Some(last) = ranges.last() {
            assert!(last.0 + last.1 + GAP as usize <= size, "{last:?} of {size}");
        }
    }

    #[test]
    fn both_ends_compute_the_same_plan() {
        let (mut a, mut b) = (Planner::new(limits(3), 0, 5), Planner::new(limits(3), 0, 5));
        let mut other = Planner::new(limits(3), 1, 5);
        for _ in 0..50 {
            let batch = a.next_batch();
            assert_eq!(batch, b.next_batch());
            assert_ne!(batch, other.next_batch());
        }
    }

    #[test]
    fn flushes_and_atomic_writes_change_nothing_else() {
        for seed in 0..10 {
            let plain = Limits {
                flush: false,
                atomic_write: false,
                ..limits(seed)
            };
            let (mut a, mut b) = (Planner::new(limits(seed), 0, 1), Planner::new(plain, 0, 1));
            for _ in 0..50 {
                let (mut a, b) = (a.next_batch(), b.next_batch());
                a.ops
                    .retain(|o| !matches!(o.kind, Kind::AtomicWrite { .. } | Kind::Flush { .. }));
                let described =
                    |ops: &[Op]| ops.iter().map(|o| (o.kind, o.payload)).collect::<Vec<_>>();
                assert_eq!(described(&a.ops), described(&b.ops));
                assert_eq!((a.words, a.shared), (b.words, b.shared));
            }
        }
    }

    #[test]
    fn memory_is_disjoint_and_bounded_and_every_kind_occurs() {
        let mut seen = [0; 12];
        for seed in 0..40 {
            let limits = limits(seed);
            let mut planner = Planner::new(limits, 0, 0);
            let mut unsignalled = 0;
            for _ in 0..100 {
                let batch = planner.next_batch();
                let size = limits.arena();
                let pieces =
                    |of: &[Piece]| of.iter().map(|p| (p.offset, p.len)).collect::<Vec<_>>();
                disjoint(
                    batch
                        .ops
                        .iter()
                        .filter(|o| !o.fenced)
                        .flat_map(|o| pieces(&o.local))
                        .collect(),
                    size,
                );
                disjoint(
                    batch.ops.iter().flat_map(|o| pieces(&o.recv)).collect(),
                    size,
                );
                let written = batch.ops.iter().filter_map(|o| match o.kind {
                    Kind::Write { at, .. } | Kind::AtomicWrite { at } => Some((at, o.len)),
                    _ => None,
                });
                disjoint(written.collect(), size);
                for op in &batch.ops {
                    assert!(op.local.len() <= limits.send_sge && op.recv.len() <= limits.recv_sge);
                    let local = op.local.iter().map(|p| p.len).sum::<usize>();
                    let carried = matches!(op.kind, Kind::AtomicWrite { .. });
                    assert_eq!(local, if carried { 0 } else { op.len });
                    assert!(!op.inline || op.len <= limits.inline);
                    if matches!(op.kind, Kind::Send(_)) {
                        assert!(op.recv.iter().map(|p| p.len).sum::<usize>() >= op.len);
                    }
                    unsignalled = if op.signalled { 0 } else { unsignalled + 1 };
                    assert!(unsignalled < limits.sq_depth / 2);
                    let kind = match op.kind {
                        Kind::Send(None) => 0,
                        Kind::Send(Some(_)) => 1 + usize::from(op.fenced),
                        Kind::Write { imm: None, .. } => 3,
                        Kind::Write { .. } => 4,
                        Kind::ReadSource { at } => {
                            assert!(at + op.len <= limits.source());
                            5
                        }
                        Kind::ReadBack { .. } => 6,
                        Kind::Cas { .. } | Kind::FetchAdd { .. } => 7,
                        Kind::SharedAdd { .. } => 8,
                        Kind::AtomicWrite { at } => {
                            assert_eq!((at % 8, op.len), (0, 8));
                            9
                        }
                        Kind::Flush { range: None } => 10,
                        Kind::Flush { range: Some(range) } => {
                            assert!(batch.ops.iter().any(|o| match o.kind {
                                Kind::Write { at, .. } | Kind::AtomicWrite { at } => {
                                    (at, o.len) == range
                                }
                                _ => false,
                            }));
                            11
                        }
                    };
                    seen[kind] += 1;
                }
                assert!(
                    batch
                        .ops
                        .last()
                        .is_some_and(|o| o.signalled && o.solicited && o.kind.receives())
                );
            }
        }
        assert!(seen.iter().all(|n| *n > 50), "{seen:?}");
    }
}
