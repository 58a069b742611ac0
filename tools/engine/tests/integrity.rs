// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Integrity regions: what passes through them is compared with a model that handles whole blocks.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use vrnic_engine::{
    Cause, Features, RnicConfig, Segmentation,
    testing::{Arena, Completion, Connection, Faults, IntegrityMr, Node, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        AllocateIntegrityMr, ContextKind, DeregisterMr, QueryDevice, Status as CommandStatus,
    },
    completion::{Opcode, Status},
    integrity::{
        Guard, IntegrityDomain, IntegrityError, IntegrityTarget, check, domain_flags, table_length,
    },
    memory::access,
    qp::QpState,
    work::{SendOpcode, placement},
};

const MR: usize = 1 << 17;
const RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
const ALL: u8 = check::GUARD | check::APP_TAG | check::REF_TAG;

/// A block and its PI, if it has any.
type Block = (Vec<u8>, Option<[u8; 8]>);

/// The first error: kind, offset, expected and actual value.
type Error = (IntegrityError, u64, u32, u32);

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|completion| (completion.wr_id, completion.status))
        .collect()
}

/// Returns the guard of a block, bit by bit and word by word.
fn guard(domain: &IntegrityDomain, block: &[u8]) -> u16 {
    let seed = domain.guard_seed.get();
    if domain.guard == Guard::Crc.raw() {
        block.iter().fold(seed, |crc, byte| {
            (0..8).rev().fold(crc, |crc, bit| {
                let carry = crc >> 15 != u16::from(byte >> bit & 1);
                crc << 1 ^ if carry { 0x8bb7 } else { 0 }
            })
        })
    } else {
        let words = block
            .chunks(2)
            .map(|word| u16::from_be_bytes([word[0], word[1]]));
        !words.fold(seed, |sum, word| {
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
    }
}

fn has(domain: &IntegrityDomain, flag: u8) -> bool {
    domain.flags & flag != 0
}

/// Returns the PI that block `n` should have.
fn proper(domain: &IntegrityDomain, n: usize, block: &[u8]) -> [u8; 8] {
    let increment = u32::from(has(domain, domain_flags::REF_INCREMENT)) * n as u32;
    let mut pi = [0; 8];
    pi[..2].copy_from_slice(&guard(domain, block).to_be_bytes());
    pi[2..4].copy_from_slice(&domain.app_tag.get().to_be_bytes());
    let tag = domain.ref_tag.get().wrapping_add(increment);
    pi[4..].copy_from_slice(&tag.to_be_bytes());
    pi
}

fn is_excused(domain: &IntegrityDomain, pi: [u8; 8]) -> bool {
    has(domain, domain_flags::APP_ESCAPE)
        && pi[2..4] == [0xff; 2]
        && (!has(domain, domain_flags::REF_ESCAPE) || pi[4..] == [0xff; 4])
}

/// Lets blocks pass from one domain to the other.
fn pass(
    target: &IntegrityTarget,
    from: &IntegrityDomain,
    to: &IntegrityDomain,
    blocks: &[Block],
) -> (Vec<Block>, Option<Error>) {
    let mut first = None;
    let passed = blocks.iter().enumerate().map(|(n, (block, pi))| {
        let ours = proper(to, n, block);
        let mut result = ours;
        if let Some(pi) = pi {
            let expected = proper(from, n, block);
            let mask: Vec<u8> = (0..8)
                .map(|byte| {
                    let app = from.app_mask.get().to_be_bytes();
                    let checked = target.check_mask >> (7 - byte) & 1 != 0;
                    match byte {
                        _ if !checked => 0,
                        2 | 3 => app[byte - 2],
                        _ => 0xff,
                    }
                })
                .collect();
            let excused = is_excused(from, *pi);
            for (error, place) in [
                (IntegrityError::Guard, 0..2),
                (IntegrityError::RefTag, 4..8),
                (IntegrityError::AppTag, 2..4),
            ] {
                let differs = place.clone().any(|i| (pi[i] ^ expected[i]) & mask[i] != 0);
                let number = |pi: &[u8; 8]| {
                    pi[place.clone()]
                        .iter()
                        .fold(0u32, |n, &byte| n * 256 + u32::from(byte))
                };
                if differs && !excused && first.is_none() {
                    let offset = n as u64 * (u64::from(target.interval.get()) + 8);
                    first = Some((error, offset, number(&expected), number(pi)));
                }
            }
            if (from.guard, from.guard_seed) == (to.guard, to.guard_seed) {
                result[..2].copy_from_slice(&pi[..2]);
            }
            if from.app_tag == to.app_tag || excused {
                result[2..4].copy_from_slice(&pi[2..4]);
            }
            let increments = |domain| has(domain, domain_flags::REF_INCREMENT);
            let same = from.ref_tag == to.ref_tag && increments(from) == increments(to);
            if same || excused {
                result[4..].copy_from_slice(&pi[4..]);
            }
        }
        (block.clone(), (to.guard != 0).then_some(result))
    });
    (passed.collect(), first)
}

/// Returns blocks as they are on the wire.
fn joined(blocks: &[Block]) -> Vec<u8> {
    blocks
        .iter()
        .flat_map(|(block, pi)| block.iter().chain(pi.iter().flatten()))
        .copied()
        .collect()
}

fn below(random: &mut ChaCha8Rng, limit: usize) -> usize {
    random.next_u32() as usize % limit
}

fn pick<T: Copy>(random: &mut ChaCha8Rng, from: &[T]) -> T {
    from[below(random, from.len())]
}

fn any_domain(random: &mut ChaCha8Rng, guard: Guard) -> IntegrityDomain {
    IntegrityDomain {
        ref_tag: pick(random, &[0, 7, u32::MAX - 1]).into(),
        app_tag: pick(random, &[0u16, 0x1234, 0xffff]).into(),
        app_mask: pick(random, &[0xffffu16, 0x00f0, 0]).into(),
        guard_seed: pick(random, &[0u16, 0, 0xffff]).into(),
        guard: guard.raw(),
        flags: below(random, 8) as u8,
    }
}

/// Returns random blocks with PI that is mostly right.
fn any_blocks(random: &mut ChaCha8Rng, domain: &IntegrityDomain, interval: usize) -> Vec<Block> {
    let count = 1 + below(random, 6);
    (0..count)
        .map(|n| {
            let mut block = vec![0; interval];
            random.fill_bytes(&mut block);
            let mut pi = proper(domain, n, &block);
            match below(random, 8) {
                0 => pi[below(random, 8)] ^= 1 << below(random, 8),
                1 => block[below(random, interval)] ^= 1 << below(random, 8),
                2 => pi[2..4].fill(0xff),
                3 => pi[2..].fill(0xff),
                _ => {}
            }
            (block, (domain.guard != 0).then_some(pi))
        })
        .collect()
}

/// Returns the memory of the first `length` bytes of an arena in random pieces.
fn elements(random: &mut ChaCha8Rng, arena: &Arena, length: usize) -> Vec<(u64, u32)> {
    let mut elements = Vec::new();
    let mut offset = 0;
    while offset < length {
        let most = (length - offset).min(4096 - offset % 4096);
        let part = match below(random, 3) {
            0 => 1 + below(random, most),
            _ => most,
        };
        elements.push((arena.address(offset), part as u32));
        offset += part;
    }
    elements
}

/// Divides `length` bytes at random places. Returns offset and length of each part.
fn parts(random: &mut ChaCha8Rng, length: usize) -> Vec<(usize, usize)> {
    let mut cuts: Vec<usize> = (0..below(random, 5))
        .map(|_| below(random, length))
        .collect();
    cuts.extend([0, length]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2)
        .map(|pair| (pair[0], pair[1] - pair[0]))
        .collect()
}

fn config(segmentation: Segmentation) -> RnicConfig {
    RnicConfig {
        segmentation,
        ..RnicConfig::default()
    }
}

/// Posts a request and expects success, in the order of these requests.
fn done(world: &mut World, c: &mut Connection, side: usize, requests: &[Send]) {
    for request in requests {
        c.send(world, side, request);
        world.settle();
    }
    let completions = c.send_cqs[side].drain();
    let good = completions
        .iter()
        .all(|done| done.status == Status::Success);
    assert!(
        good && completions.len() == requests.len(),
        "{completions:?}"
    );
}

/// An integrity region of node 1 with blocks in memory.
struct Region {
    mr: IntegrityMr,
    data: Arena,
    metadata: Arena,
    length: usize,
    metadata_length: usize,
}

impl Region {
    /// Registers memory with the contents of these blocks.
    fn new(
        world: &mut World,
        c: &mut Connection,
        random: &mut ChaCha8Rng,
        wanted: IntegrityTarget,
        blocks: &[Block],
    ) -> Self {
        let Node { rnic, guest } = &mut world.nodes[1];
        let data: Vec<u8> = blocks.iter().flat_map(|(block, _)| block.clone()).collect();
        let metadata: Vec<u8> = blocks.iter().filter_map(|(_, pi)| *pi).flatten().collect();
        let mut region = Self {
            mr: guest.integrity_mr(rnic, 256, 64),
            data: guest.arena(data.len()),
            metadata: guest.arena(metadata.len().max(1)),
            length: data.len(),
            metadata_length: metadata.len(),
        };
        region.data.put(0, &data);
        region.metadata.put(0, &metadata);
        let register = region.mr.register(
            1,
            &elements(random, &region.data, data.len()),
            &elements(random, &region.metadata, metadata.len()),
            wanted,
        );
        done(world, c, 1, &[register]);
        region
    }

    /// Returns the first error that the device reported.
    fn error(&self) -> Option<Error> {
        let status = self.mr.status();
        match IntegrityError::try_from(status.error.get()).expect("known") {
            IntegrityError::None => None,
            error => {
                assert_eq!(status.key.get(), self.mr.key);
                let (expected, actual) = (status.expected.get(), status.actual.get());
                Some((error, status.offset.get(), expected, actual))
            }
        }
    }
}

/// Lets random blocks pass a random region in one direction, in some way, and compares the result with the model.
fn blocks_pass(seed: u64, segmentation: Segmentation) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let random = &mut random;
    let configs = vec![config(segmentation); 2];
    let mut world = if seed.is_multiple_of(4) {
        // Its recordings are replayed at the end.
        World::recorded(&configs, 2048, seed)
    } else {
        World::of(&configs, 2048, seed)
    };
    let options = QpOptions {
        sge: 8,
        ..QpOptions::default()
    };
    let c = &mut world.connect([0, 1], &options, MR, |_, attributes| {
        attributes.timeout = 8;
        attributes.retry_count = 7;
    });
    let pairs = [
        (Guard::None, Guard::Crc),
        (Guard::None, Guard::Ip),
        (Guard::Crc, Guard::None),
        (Guard::Ip, Guard::None),
        (Guard::Crc, Guard::Crc),
        (Guard::Crc, Guard::Ip),
        (Guard::Ip, Guard::Crc),
        (Guard::Ip, Guard::Ip),
    ];
    let (memory, wire) = pairs[seed as usize % pairs.len()];
    let interval = pick(random, &[512, 520, 1024, 4096]);
    let (memory, mut wire) = (any_domain(random, memory), any_domain(random, wire));
    if below(random, 2) == 0 {
        wire = IntegrityDomain {
            guard: wire.guard,
            ..memory
        };
    }
    let wanted = IntegrityTarget {
        access: RIGHTS.into(),
        interval: (interval as u16).into(),
        check_mask: pick(random, &[ALL, ALL, check::GUARD, check::REF_TAG, 0, 0x92]),
        memory,
        wire,
        ..IntegrityTarget::default()
    };
    if seed.is_multiple_of(3) {
        world.faults = Faults {
            drop: 30,
            duplicate: 30,
            delay: 30,
            ..Faults::default()
        };
    }
    let way = seed as usize / 8 % 3;
    let read = (seed / 24).is_multiple_of(2);
    let (from, to) = if read { (memory, wire) } else { (wire, memory) };
    let source = any_blocks(random, &from, interval);
    let (result, error) = pass(&wanted, &from, &to, &source);
    let what = format!("seed {seed} {segmentation:?}: way {way}, read {read}, {wanted:?}");

    if read {
        let region = Region::new(&mut world, c, random, wanted, &source);
        let expected = joined(&result);
        let far = c.mrs.clone();
        match way {
            // The peer reads.
            0 => {
                for (offset, length) in parts(random, expected.len()) {
                    let read = Send::new(2, SendOpcode::Read)
                        .rdma(offset as u64, region.mr.key)
                        .element(far[0].sge(offset, length));
                    done(&mut world, c, 0, &[read]);
                }
            }
            // The owner writes.
            1 => {
                for (offset, length) in parts(random, expected.len()) {
                    let write = Send::new(2, SendOpcode::Write)
                        .rdma(far[0].iova + offset as u64, far[0].key)
                        .element(region.mr.sge(offset, length));
                    done(&mut world, c, 1, &[write]);
                }
            }
            // The owner sends, with elements that begin and end anywhere.
            _ => {
                let send = parts(random, expected.len())
                    .iter()
                    .fold(Send::new(2, SendOpcode::Send), |send, &(offset, length)| {
                        send.element(region.mr.sge(offset, length))
                    });
                c.receive(&mut world, 0, 9, &[far[0].sge(0, MR)]);
                done(&mut world, c, 1, &[send]);
            }
        }
        assert_eq!(far[0].arena.get(0, expected.len()), expected, "{what}");
        assert_eq!(region.error(), error, "{what}");
        return;
    }

    let empty: Vec<Block> = source
        .iter()
        .map(|_| (vec![0; interval], (to.guard != 0).then_some([0; 8])))
        .collect();
    let region = Region::new(&mut world, c, random, wanted, &empty);
    let stream = joined(&source);
    let far = c.mrs.clone();
    far[0].arena.put(0, &stream);
    match way {
        // The peer writes.
        0 => {
            for (offset, length) in parts(random, stream.len()) {
                let write = Send::new(2, SendOpcode::Write)
                    .rdma(offset as u64, region.mr.key)
                    .element(far[0].sge(offset, length));
                done(&mut world, c, 0, &[write]);
            }
        }
        // The owner reads.
        1 => {
            for (offset, length) in parts(random, stream.len()) {
                let read = Send::new(2, SendOpcode::Read)
                    .rdma(far[0].iova + offset as u64, far[0].key)
                    .element(region.mr.sge(offset, length));
                done(&mut world, c, 1, &[read]);
            }
        }
        // The peer sends to a receive with elements that begin and end anywhere.
        _ => {
            let sges: Vec<_> = parts(random, stream.len())
                .iter()
                .map(|&(offset, length)| region.mr.sge(offset, length))
                .collect();
            c.receive(&mut world, 1, 9, &sges);
            let send = Send::new(2, SendOpcode::Send).element(far[0].sge(0, stream.len()));
            done(&mut world, c, 0, &[send]);
        }
    }
    let data: Vec<u8> = result.iter().flat_map(|(block, _)| block.clone()).collect();
    let metadata: Vec<u8> = result.iter().filter_map(|(_, pi)| *pi).flatten().collect();
    assert_eq!(region.data.get(0, region.length), data, "{what}");
    assert_eq!(
        region.metadata.get(0, region.metadata_length),
        metadata,
        "{what}"
    );
    assert_eq!(region.error(), error, "{what}");
}

#[test]
fn blocks_pass_as_in_the_model() {
    for seed in 0..96 {
        for segmentation in [Segmentation::Local, Segmentation::PathMtu] {
            blocks_pass(seed, segmentation);
        }
    }
}

/// Returns a registration that generates PI for the wire, from `blocks` blocks of 512 bytes.
fn plain(blocks: usize) -> (IntegrityTarget, Vec<Block>) {
    let wanted = IntegrityTarget {
        access: RIGHTS.into(),
        interval: 512.into(),
        check_mask: ALL,
        wire: IntegrityDomain {
            app_mask: 0xffff.into(),
            guard: Guard::Crc.raw(),
            ..IntegrityDomain::default()
        },
        ..IntegrityTarget::default()
    };
    (wanted, vec![(vec![7; 512], None); blocks])
}

fn region(world: &mut World, c: &mut Connection, blocks: usize) -> Region {
    let (wanted, blocks) = plain(blocks);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    Region::new(world, c, &mut random, wanted, &blocks)
}

fn connected(seed: u64) -> (World, Connection) {
    let mut world = World::pair(seed);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    (world, c)
}

#[test]
fn the_status_is_of_the_first_error_and_lives_until_the_next_registration() {
    let (mut world, mut c) = connected(1);
    let mut region = region(&mut world, &mut c, 3);
    let mr = c.mrs[0].clone();
    let write = |bytes: &[u8], address: u64, key: u32| {
        mr.arena.put(0, bytes);
        Send::new(2, SendOpcode::Write)
            .rdma(address, key)
            .element(mr.sge(0, bytes.len()))
    };
    let wrong = write(&[0, 0, 0, 0, 0, 0, 0, 9], 2 * 520 + 512, region.mr.key);
    done(&mut world, &mut c, 0, &[wrong]);
    let crc = guard(&plain(1).0.wire, &[7; 512]);
    let error = Some((IntegrityError::Guard, 1040, u32::from(crc), 0));
    assert_eq!(region.error(), error);
    // An earlier block is wrong, but later.
    let wrong = write(&[0, 0, 0, 0, 0, 0, 0, 8], 512, region.mr.key);
    done(&mut world, &mut c, 0, &[wrong]);
    assert_eq!(region.error(), error);
    let invalidate = region.mr.invalidate(3);
    done(&mut world, &mut c, 1, &[invalidate]);
    assert_eq!(region.error(), error);

    let data = elements(&mut ChaCha8Rng::seed_from_u64(2), &region.data, 1536);
    let register = region.mr.register(4, &data, &[], plain(1).0);
    c.send(&mut world, 1, &register);
    world.settle();
    let completions = c.send_cqs[1].drain();
    assert_eq!(completions[0].opcode, Opcode::RegisterRegion);
    assert_eq!(region.error(), None);
    // The guard is right now, but the reference tag of this registration is 0.
    let mut pi = [0, 0, 0, 0, 0, 0, 0, 9];
    pi[..2].copy_from_slice(&crc.to_be_bytes());
    let wrong = write(&pi, 512, region.mr.key);
    done(&mut world, &mut c, 0, &[wrong]);
    assert_eq!(region.error(), Some((IntegrityError::RefTag, 0, 0, 9)));
}

#[test]
fn an_access_of_length_0_names_nothing() {
    let (mut world, mut c) = connected(3);
    let region = region(&mut world, &mut c, 1);
    let Node { rnic, guest } = &mut world.nodes[1];
    let unregistered = guest.integrity_mr(rnic, 4, 4);
    for (address, key) in [(u64::MAX, region.mr.key), (0, unregistered.key)] {
        let nothing = Send::new(2, SendOpcode::Write).rdma(address, key);
        done(&mut world, &mut c, 0, &[nothing]);
    }
    assert_eq!(region.error(), None);
}

#[test]
fn a_recording_does_not_have_the_blocks() {
    let (mut world, mut c) = connected(4);
    let region = region(&mut world, &mut c, 8);
    let mr = c.mrs[0].clone();
    world.nodes[1].rnic.record("x", u64::MAX);
    let read = Send::new(2, SendOpcode::Read)
        .rdma(0, region.mr.key)
        .element(mr.sge(0, 8 * 520));
    done(&mut world, &mut c, 0, &[read]);
    let recorded = world.recordings().remove(0);
    assert!(recorded.len() > 1000 && !recorded.windows(64).any(|bytes| bytes == [7; 64]));
}

#[test]
fn pi_in_parts_is_checked_unless_another_comes_in_between() {
    let (mut world, mut c) = connected(2);
    let region = region(&mut world, &mut c, 2);
    let mr = c.mrs[0].clone();
    mr.arena.put(0, &[1; 8]);
    let write = |address: u64, length| {
        Send::new(2, SendOpcode::Write)
            .rdma(address, region.mr.key)
            .element(mr.sge(0, length))
    };
    let requests = [write(512, 5), write(1032, 5), write(517, 3)];
    done(&mut world, &mut c, 0, &requests);
    assert_eq!(region.error(), None);
    done(&mut world, &mut c, 0, &[write(515, 2), write(512, 3)]);
    let crc = guard(&plain(1).0.wire, &[7; 512]);
    let error = (IntegrityError::Guard, 0, u32::from(crc), 0x0101);
    assert_eq!(region.error(), Some(error));
}

#[test]
fn nothing_else_takes_the_key() {
    for (index, expected) in [
        (0, Status::RemoteAccess),
        (1, Status::RemoteAccess),
        (2, Status::RemoteAccess),
        (3, Status::RemoteAccess),
        (4, Status::RemoteAccess),
        (5, Status::RemoteAccess),
    ] {
        let (mut world, mut c) = connected(3);
        let region = region(&mut world, &mut c, 2);
        let (key, sge) = (region.mr.key, c.mrs[0].sge(0, 8));
        let send = match index {
            0 => Send::new(1, SendOpcode::FetchAdd)
                .atomic(0, key, 1, 0)
                .element(sge),
            1 => Send::new(1, SendOpcode::AtomicWrite).atomic(0, key, 0, 1),
            2 => Send::new(1, SendOpcode::Flush).flush(0, key, 8, placement::GLOBAL),
            // Beyond the end, and another lowest byte.
            3 => Send::new(1, SendOpcode::Write).rdma(1033, key).element(sge),
            4 => Send::new(1, SendOpcode::Read).rdma(1040, key).element(sge),
            _ => Send::new(1, SendOpcode::Read).rdma(0, key ^ 1).element(sge),
        };
        c.send(&mut world, 0, &send);
        world.settle();
        assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, expected)], "{index}");
        assert_eq!(region.error(), None);
    }
    // When the region was made free, the key is worth nothing.
    let (mut world, mut c) = connected(4);
    let region = region(&mut world, &mut c, 2);
    let invalidate = region.mr.invalidate(1);
    done(&mut world, &mut c, 1, &[invalidate]);
    let sge = c.mrs[0].sge(0, 8);
    let read = Send::new(2, SendOpcode::Read)
        .rdma(0, region.mr.key)
        .element(sge);
    c.send(&mut world, 0, &read);
    world.settle();
    assert_eq!(
        statuses(&c.send_cqs[0].drain()),
        [(2, Status::RemoteAccess)]
    );
}

#[test]
fn each_fault_of_a_registration_is_found() {
    type Change = fn(&mut IntegrityTarget, &IntegrityMr);
    let faults: [(Change, Cause); 22] = [
        (
            |t, _| t.key = (t.key.get() ^ 0x100).into(),
            Cause::IntegrityKey,
        ),
        (
            |t, _| t.access = access::REMOTE_WRITE.into(),
            Cause::AccessRights,
        ),
        (
            |t, _| t.access = (RIGHTS | access::REMOTE_ATOMIC).into(),
            Cause::AccessRights,
        ),
        (
            |t, _| t.access = (RIGHTS | access::MW_BIND).into(),
            Cause::AccessRights,
        ),
        (|t, _| t.access = u32::MAX.into(), Cause::AccessRights),
        (|t, _| t.interval = 0.into(), Cause::IntegrityFormat),
        (|t, _| t.interval = 256.into(), Cause::IntegrityFormat),
        (|t, _| t.interval = 4104.into(), Cause::IntegrityFormat),
        (|t, _| t.wire.guard = 0, Cause::IntegrityFormat),
        (|t, _| t.wire.guard = 3, Cause::IntegrityFormat),
        (|t, _| t.memory.flags = 0x80, Cause::IntegrityFormat),
        (|t, _| t.elements = 0.into(), Cause::IntegrityElements),
        (|t, _| t.elements = 5.into(), Cause::IntegrityElements),
        (
            |t, _| t.elements = u16::MAX.into(),
            Cause::IntegrityElements,
        ),
        (
            |t, _| t.metadata_elements = 1.into(),
            Cause::IntegrityElements,
        ),
        (|t, _| t.memory.guard = 1, Cause::IntegrityElements),
        (
            |t, _| {
                t.memory.guard = 1;
                t.metadata_elements = 3.into();
            },
            Cause::IntegrityElements,
        ),
        (|t, _| t.interval = 520.into(), Cause::IntegrityLength),
        (
            |_, mr| mr.table.put(32 + 8, &511u32.to_le_bytes()),
            Cause::IntegrityLength,
        ),
        (
            |_, mr| mr.table.put(32 + 8, &[0; 4]),
            Cause::IntegrityElements,
        ),
        (|_, mr| mr.table.put(32, &[0xff; 8]), Cause::PageUnmapped),
        (
            |_, mr| mr.table.put(32 + 8, &[0xff; 4]),
            Cause::PageUnmapped,
        ),
    ];
    for (index, (change, cause)) in faults.into_iter().enumerate() {
        let (mut world, mut c) = connected(5);
        let Node { rnic, guest } = &mut world.nodes[0];
        let mr = guest.integrity_mr(rnic, 4, 2);
        let data = guest.arena(1024);
        let mut target = mr.target(&[(data.address(0), 1024)], &[], plain(1).0);
        change(&mut target, &mr);
        let send = Send::new(1, SendOpcode::RegisterIntegrity).target(&target);
        c.send(&mut world, 0, &send);
        world.settle();
        let done = c.send_cqs[0].drain();
        assert_eq!(
            statuses(&done),
            [(1, Status::MemoryManagement)],
            "fault {index}"
        );
        assert_eq!(done[0].cause, Some(cause), "fault {index}");
        assert_eq!(world.state(0, c.qps[0].qpn), QpState::Error);
    }
    // Without a change it works, but only once.
    let (mut world, mut c) = connected(6);
    let Node { rnic, guest } = &mut world.nodes[0];
    let mut mr = guest.integrity_mr(rnic, 4, 2);
    let data = guest.arena(1024);
    for expected in [Status::Success, Status::MemoryManagement] {
        let register = mr.register(1, &[(data.address(0), 1024)], &[], plain(1).0);
        c.send(&mut world, 0, &register);
        world.settle();
        assert_eq!(statuses(&c.send_cqs[0].drain()), [(1, expected)]);
    }
    // A region for fast registration is no integrity region, nor the other way round.
    let (mut world, mut c) = connected(7);
    let Node { rnic, guest } = &mut world.nodes[0];
    let fast = guest.fast_mr(rnic, 16);
    let target = IntegrityTarget {
        key: fast.key.into(),
        elements: 1.into(),
        ..plain(1).0
    };
    let send = Send::new(1, SendOpcode::RegisterIntegrity).target(&target);
    c.send(&mut world, 0, &send);
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].cause, Some(Cause::IntegrityKey));
    let (mut world, mut c) = connected(8);
    let Node { rnic, guest } = &mut world.nodes[0];
    let integrity = guest.integrity_mr(rnic, 4, 2);
    let mut fast = guest.fast_mr(rnic, 16);
    fast.key = integrity.key;
    let mr = c.mrs[0].clone();
    let small = vrnic_engine::testing::Mr {
        arena: {
            let Node { guest, .. } = &mut world.nodes[0];
            guest.arena(4096)
        },
        ..mr
    };
    c.send(&mut world, 0, &fast.register(1, &small, RIGHTS, 0));
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].cause, Some(Cause::RegisterKey));
}

#[test]
fn commands_are_checked_and_undone() {
    let mut world = World::pair(9);
    let Node { rnic, guest } = &mut world.nodes[0];
    let limits = guest.command(rnic, QueryDevice {}).expect("limits");
    let most = limits.max_fast_registration_pages.get();
    let table = guest.arena(table_length(most, most) as usize + 64);
    let mut try_with = |elements: u32, metadata: u32, length: u64, offset: usize, reserved: u32| {
        let (list, chunks) = guest.page_list(&table, offset, length as usize);
        let request = AllocateIntegrityMr {
            pd: guest.pd.into(),
            max_elements: elements.into(),
            max_metadata_elements: metadata.into(),
            reserved: reserved.into(),
            table: list,
        };
        let result = guest.command(rnic, request);
        guest.free(chunks);
        result.map(|reply| reply.key.get())
    };
    let range = Err((CommandStatus::InvalidArgument, Cause::TableLength));
    let shape = Err((CommandStatus::BadAddress, Cause::PageListShape));
    let reserved = Err((CommandStatus::Malformed, Cause::ReservedField));
    assert_eq!(try_with(0, 1, 48, 0, 0), range);
    assert_eq!(
        try_with(most + 1, 0, table_length(most + 1, 0), 0, 0),
        range
    );
    assert_eq!(
        try_with(1, most + 1, table_length(1, most + 1), 0, 0),
        range
    );
    assert_eq!(try_with(u32::MAX, u32::MAX, 64, 0, 0), range);
    assert_eq!(try_with(2, 1, 64, 0, 0), shape);
    assert_eq!(try_with(1, 0, 48, 32, 0), shape);
    assert_eq!(try_with(1, 0, 48, 0, 1), reserved);
    let snapshot = |world: &World| {
        let snapshot = world.nodes[0].rnic.snapshot();
        (snapshot.mrs, snapshot.translations)
    };
    let before = snapshot(&world);
    let Node { rnic, guest } = &mut world.nodes[0];
    let mr = guest.integrity_mr(rnic, most, most);
    assert_ne!(snapshot(&world), before);
    let Node { rnic, guest } = &mut world.nodes[0];
    let deregister = DeregisterMr {
        pd: guest.pd.into(),
        key: mr.key.into(),
    };
    guest.command(rnic, deregister).expect("deregister");
    assert_eq!(snapshot(&world), before);
}

#[test]
fn without_the_feature_or_a_kernel_there_is_nothing_of_it() {
    let with = |integrity, memory_extensions| RnicConfig {
        features: Features {
            integrity,
            memory_extensions,
            ..Features::ALL
        },
        ..RnicConfig::default()
    };
    for config in [with(false, true), with(true, false)] {
        let mut world = World::new(2, 2048, &config, 10);
        let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
        let Node { rnic, guest } = &mut world.nodes[0];
        let refused = guest.command(rnic, AllocateIntegrityMr::default());
        let unsupported = (CommandStatus::Unsupported, Cause::CommandCode);
        assert_eq!(refused.unwrap_err(), unsupported);
        c.send(&mut world, 0, &Send::new(1, SendOpcode::RegisterIntegrity));
        world.settle();
        let done = c.send_cqs[0].drain();
        assert_eq!(statuses(&done), [(1, Status::LocalQueuePairOperation)]);
    }
    let mut world = World::pair(11);
    let Node { rnic, guest } = &mut world.nodes[0];
    guest.start(rnic, ContextKind::User, 64);
    let table = guest.arena(48);
    let (list, _chunks) = guest.page_list(&table, 0, 48);
    let request = AllocateIntegrityMr {
        pd: guest.pd.into(),
        max_elements: 1.into(),
        table: list,
        ..AllocateIntegrityMr::default()
    };
    let refused = guest.command(rnic, request).unwrap_err();
    assert_eq!(refused, (CommandStatus::NotPermitted, Cause::KernelOnly));
}
