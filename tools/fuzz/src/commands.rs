// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands of a hostile kernel.
//!
//! First, commands are made that are valid: they refer to existing objects, and their page lists point to memory. Then
//! parts of them are changed. The resulting queue pairs are brought up, given work and rung. At the end, every object
//! named in a reply must be destroyable, and nothing may be left. A refused command must change nothing. Every reply
//! must have the length that it states, and a cause if it reports an error.

use crate::{innocent::check_connection, input::Input, objects::Objects};
use std::time::Duration;
use vrnic_engine::{
    Cause, Limits, RnicConfig, Segment,
    segment::Payload,
    testing::{Arena, Connection, Faults, Node, QpOptions, Send, World, gid_of},
};
use vrnic_wire::{
    command::{
        AllocateIntegrityMr, AllocateMr, AllocateMw, AttachCompletionCounter, AttachMulticast,
        AttachRegion, BindCounterSet, ClearGid, Command, CommandCode, CommandHeader,
        CreateCompletionCounter, CreateContext, CreateCounterSet, CreateCq, CreateFlow, CreatePd,
        CreateQp, CreateScalingQp, CreateSrq, CreateTunnelFlow, CreateXrcSrq, CreateXrcd,
        DeallocateMw, DeregisterMr, DestroyCompletionCounter, DestroyContext, DestroyCounterSet,
        DestroyCq, DestroyFlow, DestroyPd, DestroyQp, DestroySrq, DestroyXrcd, DetachMulticast,
        MAD_LENGTH, MAX_SCALING_ENTRIES, MapPages, ModifyCompletionCounter, ModifyCq, ModifyPort,
        ModifyQp, ModifyQpPaths, ModifySrq, NameContext, ProcessMad, QueryClock,
        QueryCompletionCounter, QueryCounterSet, QueryCounters, QueryDevice, QueryFlow, QueryGids,
        QueryPkeys, QueryPort, QueryQp, QueryQpPaths, QuerySrq, QuerySubnetPort, RegisterMr,
        ReplyHeader, ReregisterMr, ResizeCq, ResizeSrq, RingDoorbell, SetGid, SetMtu, SetPortState,
        Status, TakePageFault, UnmapPages, hash_fields, mr_flags, qp_flags,
    },
    completion::CQE_STRIDE,
    integrity::{
        ELEMENTS_OFFSET, IntegrityDomain, IntegrityElement, IntegrityTarget, table_length,
    },
    memory::{CHUNK_PAGES, LOCAL_DMA_KEY, PageList, access},
    notify,
    port::{GidEntry, Mtu, NO_VLAN},
    qp::{AlternatePath, QpAttributes, QpState, QpType, attribute},
    ring::{RingLayout, offset},
    work::{
        AddressVector, BindTarget, ReceiveHeader, RegisterTarget, SendOpcode, Sge, receive_stride,
        send_stride,
    },
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Returns a registration of an integrity region with this key that is valid or almost valid.
pub(crate) fn integrity_target(key: u32, input: &mut Input<'_>) -> IntegrityTarget {
    let mut domain = || IntegrityDomain {
        ref_tag: u32::from(input.take::<u8>()).into(),
        app_tag: 0.into(),
        app_mask: u16::MAX.into(),
        guard_seed: 0.into(),
        guard: input.below(4) as u8,
        flags: input.take::<u8>() & 15,
    };
    let (memory, wire) = (domain(), domain());
    IntegrityTarget {
        key: key.into(),
        access: u32::from(input.take::<u8>() & 15).into(),
        elements: (input.below(5) as u16).into(),
        metadata_elements: (input.below(3) as u16).into(),
        interval: input.pick(&[512u16, 512, 512, 520, 4096, 0, 513]).into(),
        check_mask: input.take(),
        reserved: 0,
        memory,
        wire,
    }
}

/// Flags of queue pairs, of which only some are for each type.
const RECEIVE_OPTIONS: [u8; 8] = [
    0,
    0,
    0,
    0,
    qp_flags::STRIP_VLAN,
    qp_flags::APPEND_FCS,
    qp_flags::STRIP_VLAN | qp_flags::APPEND_FCS,
    qp_flags::BLOCK_OWN_MULTICAST,
];

/// Number of guest pages that commands may refer to.
const HEAP_PAGES: usize = 40;
/// Number of pages for chunks of page lists.
const CHUNKS: usize = 4;
/// Largest number of operations in one input.
const MAX_OPERATIONS: usize = 150;
/// Size of a page in bytes.
const PAGE: usize = 4096;

/// A queue pair and the location of its send queue.
struct MadeQp {
    qpn: u32,
    slot: u32,
    qp_type: u8,
    /// Offset of its buffer in the heap.
    start: usize,
    send_ring: RingLayout,
}

/// A shared receive queue and its location.
struct MadeSrq {
    srqn: u32,
    /// Offset of its buffer in the heap.
    start: usize,
    ring: RingLayout,
}

/// Everything on which an input acts.
struct Scene {
    world: World,
    heap: Arena,
    chunks: Arena,
    next_chunk: usize,
    objects: Objects,
    pages: Vec<u32>,
    qps: Vec<MadeQp>,
    srqs: Vec<MadeSrq>,
    innocent: Connection,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut scene = Scene::new();
    input.operations(MAX_OPERATIONS, |input| scene.operate(input));
    scene.end();
}

/// Executes a command, which may be any bytes, and checks the reply. Returns the body of the reply if the command
/// succeeded.
fn execute(node: &mut Node, request: &[u8]) -> Option<Vec<u8>> {
    let count = |node: &Node| {
        let seen = node.rnic.snapshot();
        let objects = (seen.contexts, seen.pds, seen.cqs, seen.qps);
        let keys = (seen.mrs, seen.mws);
        (
            objects,
            seen.srqs,
            keys,
            (seen.attachments, seen.counter_sets, seen.flows),
            seen.completion_counters,
            seen.translations,
        )
    };
    let before = count(node);
    let reply = node.guest.raw_command(&mut node.rnic, request);
    let (header, body) = ReplyHeader::read_from_prefix(&reply).expect("reply header");
    let status = Status::try_from(header.status.get()).expect("status");
    assert_eq!(header.length.get() as usize, body.len());
    if status == Status::Ok {
        assert_eq!(header.vendor_error.get(), 0);
        return Some(body.to_vec());
    }
    assert!(body.is_empty());
    assert!(Cause::from_code(header.vendor_error.get()).is_some());
    assert_eq!(count(node), before, "a refused command changed something");
    None
}

fn bytes_of<C: Command>(request: C) -> Vec<u8> {
    let header = CommandHeader {
        code: C::CODE.raw().into(),
        reserved: 0.into(),
        length: (size_of::<C>() as u32).into(),
    };
    [header.as_bytes(), request.as_bytes()].concat()
}

fn first_word(body: &[u8]) -> u32 {
    word(body, 0)
}

fn word(body: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(body[at..at + 4].try_into().expect("4 bytes"))
}

/// Returns the GID of one of a few multicast groups.
fn group(input: &mut Input<'_>) -> [u8; 16] {
    let mut gid = gid_of(input.below(5));
    if input.take() {
        gid[0] = 0xff;
    } else {
        gid[12] = 239;
    }
    gid
}

fn ring_at(request: &[u8], at: usize) -> RingLayout {
    RingLayout::read_from_bytes(&request[at..at + 16]).expect("16 bytes")
}

impl Scene {
    fn new() -> Self {
        let config = RnicConfig {
            limits: Limits {
                mr_size: 1 << 24,
                qp: 12,
                qp_entries: 1024,
                cq: 12,
                cq_entries: 4096,
                mr: 24,
                mw: 8,
                pd: 8,
                srq: 6,
                contexts: 5,
                gid_table: 8,
                multicast_groups: 3,
                multicast_members: 3,
                multicast_attachments: 6,
                counter_sets: 3,
                fast_registration_pages: 64,
                translations: 2000,
                ..Limits::default()
            },
            ..RnicConfig::default()
        };
        let mut world = World::new(3, 96, &config, 2);
        let innocent = world.connect([1, 2], &QpOptions::default(), 1000, |_, _| {});
        let Node { guest, .. } = &mut world.nodes[0];
        let heap = guest.arena(HEAP_PAGES * PAGE);
        let chunks = guest.arena(CHUNKS * PAGE);
        let objects = Objects::of(guest);
        let pages = vec![guest.page];
        Self {
            world,
            heap,
            chunks,
            next_chunk: 0,
            objects,
            pages,
            qps: Vec::new(),
            srqs: Vec::new(),
            innocent,
        }
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        match input.below(19) {
            0..=9 => self.command(input),
            10 | 11 => self.bring_up(input),
            12 | 13 => self.post(input),
            14 => {
                let page = input.pick(&[0, 1, 2, u32::MAX]);
                let page = self.pages.get(page as usize).copied().unwrap_or(page);
                self.world.nodes[0]
                    .rnic
                    .doorbell(page, input.take::<u8>().into());
            }
            15 => {
                // The table of a fast registration, or of whatever else is at that address.
                let page = input.below(HEAP_PAGES);
                let pages = [(); 4].map(|()| self.heap.address(PAGE * input.below(HEAP_PAGES)));
                self.heap.put(page * PAGE, pages.as_bytes());
                // The same for an integrity region.
                let elements = pages.map(|address| IntegrityElement {
                    address: address.into(),
                    length: (512 * (1 + input.below(8)) as u32).into(),
                    reserved: 0.into(),
                });
                self.heap
                    .put(page * PAGE + ELEMENTS_OFFSET, elements.as_bytes());
            }
            16 => self.post_shared(input),
            17 => self.frame(input),
            _ => {
                let rnic = &mut self.world.nodes[0].rnic;
                while rnic.next_async_event().is_some() {}
                while rnic.next_completion_event(0).is_some() {}
                let time = Duration::from_micros(1 << input.below(14));
                self.world.run(time);
            }
        }
        self.world.run(Duration::from_micros(20));
    }

    /// Executes a command and records the resulting object.
    fn command(&mut self, input: &mut Input<'_>) {
        let code = input.pick(CommandCode::ALL);
        let (mut request, made) = self.request(code, input);
        let changes = input.below(4);
        for _ in 0..changes {
            self.change(&mut request, input);
        }
        let header = size_of::<CommandHeader>();
        let named = |at: usize| word(&request, header + at);
        let Some(reply) = execute(&mut self.world.nodes[0], &request) else {
            return;
        };
        let code = u16::from_le_bytes([request[0], request[1]]);
        let code = CommandCode::try_from(code).expect("a command that succeeds has a code");
        let rnic = &self.world.nodes[0].rnic;
        if code == CommandCode::SetGid && [1, 2].iter().any(|&other| rnic.has_gid(&gid_of(other))) {
            // The device accepts this, so remove it again: the fabric, not the device, prevents guests from taking the
            // addresses of others.
            let index = named(0).into();
            let reserved = 0.into();
            execute(
                &mut self.world.nodes[0],
                &bytes_of(ClearGid { index, reserved }),
            );
        }
        let objects = &mut self.objects;
        match code {
            CommandCode::CreateContext => {
                objects.contexts.push(first_word(&reply));
                self.pages.push(word(&reply, 4));
            }
            CommandCode::DestroyContext => objects.contexts.retain(|&number| number != named(0)),
            CommandCode::CreatePd => objects.pds.push(first_word(&reply)),
            CommandCode::DestroyPd => objects.pds.retain(|&number| number != named(0)),
            CommandCode::RegisterMr
            | CommandCode::AllocateMr
            | CommandCode::AllocateIntegrityMr => {
                objects.mrs.push((named(0), first_word(&reply)));
            }
            CommandCode::DeregisterMr => {
                let index = named(4) >> 8;
                objects.mrs.retain(|&(_, key)| key >> 8 != index);
            }
            CommandCode::ReregisterMr => {
                let has_pd = named(8) & vrnic_wire::command::reregister_flags::PD != 0;
                let pd = if has_pd { named(12) } else { named(0) };
                objects.mrs.retain(|&(_, key)| key >> 8 != named(4) >> 8);
                objects.mrs.push((pd, first_word(&reply)));
            }
            CommandCode::AllocateMw => objects.mws.push((named(0), first_word(&reply))),
            CommandCode::DeallocateMw => {
                objects.mws.retain(|&(_, key)| key >> 8 != named(4) >> 8);
            }
            CommandCode::CreateCq => objects.cqs.push(first_word(&reply)),
            CommandCode::DestroyCq => objects.cqs.retain(|&number| number != named(0)),
            CommandCode::CreateQp => {
                let qpn = first_word(&reply);
                objects.qps.push(qpn);
                self.qps.push(MadeQp {
                    qpn,
                    slot: word(&reply, 4),
                    qp_type: request[header + 8],
                    start: made,
                    send_ring: ring_at(&request, header + 24),
                });
            }
            // It cannot be modified, and has no ring.
            CommandCode::CreateScalingQp => objects.qps.push(first_word(&reply)),
            CommandCode::DestroyQp => {
                objects.qps.retain(|&number| number != named(0));
                self.qps.retain(|qp| qp.qpn != named(0));
            }
            CommandCode::CreateCounterSet => objects.counter_sets.push(first_word(&reply)),
            CommandCode::DestroyCounterSet => {
                objects.counter_sets.retain(|&number| number != named(0));
            }
            CommandCode::CreateCompletionCounter => {
                objects.completion_counters.push(first_word(&reply));
            }
            CommandCode::DestroyCompletionCounter => {
                let counters = &mut objects.completion_counters;
                counters.retain(|&number| number != named(0));
            }
            CommandCode::CreateFlow | CommandCode::CreateTunnelFlow => {
                objects.flows.push(first_word(&reply));
            }
            CommandCode::DestroyFlow => objects.flows.retain(|&number| number != named(0)),
            CommandCode::CreateXrcd => objects.xrcds.push(first_word(&reply)),
            CommandCode::DestroyXrcd => objects.xrcds.retain(|&number| number != named(0)),
            CommandCode::CreateSrq | CommandCode::CreateXrcSrq => {
                let srqn = first_word(&reply);
                objects.srqs.push(srqn);
                let start = made;
                let ring = ring_at(&request, header + 16);
                self.srqs.push(MadeSrq { srqn, start, ring });
            }
            CommandCode::ResizeSrq => {
                let srqn = named(0);
                let ring = ring_at(&request, header + 8);
                for srq in self.srqs.iter_mut().filter(|srq| srq.srqn == srqn) {
                    (srq.start, srq.ring) = (made, ring);
                }
            }
            CommandCode::DestroySrq => {
                objects.srqs.retain(|&number| number != named(0));
                self.srqs.retain(|srq| srq.srqn != named(0));
            }
            _ => {}
        }
    }

    /// Changes a part of a request.
    fn change(&self, request: &mut Vec<u8>, input: &mut Input<'_>) {
        let at = input.below(160);
        let value = match input.below(8) {
            0 => u64::MAX,
            1 => 1 << input.below(64),
            2 => input.take::<u8>().into(),
            3 => self.heap.address(PAGE * input.below(HEAP_PAGES)),
            4 => self.chunks.address(PAGE * input.below(CHUNKS)),
            5 => input.take::<u32>().into(),
            6 => {
                let length = usize::from(input.take::<u16>()) % 300;
                let longer = length.saturating_sub(8);
                request.resize(length, input.take());
                // Half of the time, the header contains the new length.
                if input.take() && length >= 8 {
                    request[4..8].copy_from_slice(&(longer as u32).to_le_bytes());
                }
                return;
            }
            _ => input.take(),
        };
        let width = 1 << input.below(4);
        if let Some(place) = request.get_mut(at..at + width) {
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }

    /// Returns a page list of `length` bytes in the heap, starting at a page chosen by the input, and its offset in the
    /// heap.
    fn list(&mut self, length: usize, input: &mut Input<'_>) -> (PageList, usize) {
        let start = input.below(HEAP_PAGES);
        let count = length.div_ceil(PAGE);
        let chunk = self.next_chunk;
        self.next_chunk = (chunk + 1) % CHUNKS;
        let how = input.take::<u8>();
        let next = match how & 3 {
            0 => self.chunks.address(chunk * PAGE),
            1 => self.chunks.address((chunk + 1) % CHUNKS * PAGE),
            _ => input.take(),
        };
        // Some lists continue in other chunks, or in this one again.
        let here = match how >> 2 & 7 {
            0 => count.div_ceil(2),
            1 => input.below(256),
            _ => count,
        }
        .min(CHUNK_PAGES);
        let mut bytes = next.to_le_bytes().to_vec();
        bytes.extend((here as u64).to_le_bytes());
        for index in 0..here {
            let page = match how >> 5 {
                0 => (start + input.below(HEAP_PAGES)) % HEAP_PAGES,
                _ => (start + index) % HEAP_PAGES,
            };
            bytes.extend(self.heap.address(page * PAGE).to_le_bytes());
        }
        self.chunks.put(chunk * PAGE, &bytes);
        let list = PageList {
            first_chunk: self.chunks.address(chunk * PAGE).into(),
            offset: 0.into(),
            length: (length as u64).into(),
            page_count: (count as u32).into(),
            page_shift: 12,
            reserved: [0; 3],
        };
        (list, start * PAGE)
    }

    /// Returns a request that the device may well execute, and the offset of its buffer in the heap.
    fn request(&mut self, code: CommandCode, input: &mut Input<'_>) -> (Vec<u8>, usize) {
        let context = any(&self.objects.contexts, input).into();
        let reserved = 0.into();
        let pds = self.objects.pds.clone();
        let pd = any(&pds, input).into();
        let key_of = |keys: &[(u32, u32)], input: &mut Input<'_>| {
            let place = input.below(32) % keys.len().max(1);
            keys.get(place).copied().unwrap_or_default()
        };
        let port = 1.into();
        let mut start = 0;
        let request = match code {
            CommandCode::QueryDevice => bytes_of(QueryDevice {}),
            CommandCode::QueryClock => bytes_of(QueryClock {}),
            CommandCode::NameContext => bytes_of(NameContext {
                context: any(&self.objects.contexts, input).into(),
                pid: 7.into(),
                name: *b"fuzzer\0\0\0\0\0\0\0\0\0\0",
            }),
            CommandCode::QueryPort => bytes_of(QueryPort { port, reserved }),
            CommandCode::QueryCounters => bytes_of(QueryCounters { port, reserved }),
            CommandCode::SetGid => bytes_of(SetGid {
                index: (input.below(10) as u32).into(),
                reserved,
                entry: GidEntry {
                    gid: gid_of(input.below(4)),
                    mac: [2, 0, 0, 0, 0, 9],
                    vlan: NO_VLAN.into(),
                    gid_type: input.below(3) as u8,
                    reserved: [0; 7],
                },
            }),
            CommandCode::ClearGid => bytes_of(ClearGid {
                index: (input.below(10) as u32).into(),
                reserved,
            }),
            CommandCode::SetMtu => bytes_of(SetMtu {
                port,
                mtu: input.below(7) as u8,
                reserved: [0; 3],
            }),
            CommandCode::SetPortState => bytes_of(SetPortState {
                port,
                state: input.pick(&[1, 4, 4, 5]),
                reserved: [0; 3],
            }),
            CommandCode::CreateContext => {
                let slots = input.pick(&[64, 128, 1024, 65536]);
                let (area, at) = self.list(notify::area_length(slots), input);
                start = at;
                bytes_of(CreateContext {
                    kind: input.below(2) as u8,
                    reserved: [0; 3],
                    slots: slots.into(),
                    area,
                })
            }
            CommandCode::DestroyContext => bytes_of(DestroyContext { context, reserved }),
            CommandCode::RingDoorbell => bytes_of(RingDoorbell {
                context,
                slot: (input.below(8) as u32).into(),
            }),
            CommandCode::CreatePd => bytes_of(CreatePd { context, reserved }),
            CommandCode::DestroyPd => bytes_of(DestroyPd { pd, reserved }),
            CommandCode::CreateCounterSet => bytes_of(CreateCounterSet { port, reserved }),
            CommandCode::BindCounterSet => bytes_of(BindCounterSet {
                qpn: any(&self.objects.qps, input).into(),
                counter_set: match input.below(4) {
                    0 => reserved,
                    _ => any(&self.objects.counter_sets, input).into(),
                },
            }),
            CommandCode::QueryCounterSet => bytes_of(QueryCounterSet {
                counter_set: any(&self.objects.counter_sets, input).into(),
                reserved,
            }),
            CommandCode::DestroyCounterSet => bytes_of(DestroyCounterSet {
                counter_set: any(&self.objects.counter_sets, input).into(),
                reserved,
            }),
            CommandCode::CreateCompletionCounter => {
                let (pages, at) = self.list(input.pick(&[16, 16, 16, 8, 4096]), input);
                start = at;
                bytes_of(CreateCompletionCounter {
                    context,
                    reserved,
                    pages,
                })
            }
            CommandCode::AttachCompletionCounter => bytes_of(AttachCompletionCounter {
                qpn: any(&self.objects.qps, input).into(),
                counter: any(&self.objects.completion_counters, input).into(),
                operations: (input.below(130) as u32).into(),
                reserved,
            }),
            CommandCode::ModifyCompletionCounter => bytes_of(ModifyCompletionCounter {
                counter: any(&self.objects.completion_counters, input).into(),
                count: (input.below(3) as u16).into(),
                change: (input.below(3) as u16).into(),
                value: input.pick(&[0, 1, u64::MAX, 1 << 63]).into(),
            }),
            CommandCode::QueryCompletionCounter => bytes_of(QueryCompletionCounter {
                counter: any(&self.objects.completion_counters, input).into(),
                reserved,
            }),
            CommandCode::DestroyCompletionCounter => bytes_of(DestroyCompletionCounter {
                counter: any(&self.objects.completion_counters, input).into(),
                reserved,
            }),
            CommandCode::AttachMulticast => bytes_of(AttachMulticast {
                qpn: any(&self.objects.qps, input).into(),
                lid: 0.into(),
                reserved: 0.into(),
                gid: group(input),
            }),
            CommandCode::DetachMulticast => bytes_of(DetachMulticast {
                qpn: any(&self.objects.qps, input).into(),
                lid: 0.into(),
                reserved: 0.into(),
                gid: group(input),
            }),
            CommandCode::QuerySubnetPort => bytes_of(QuerySubnetPort { port, reserved }),
            CommandCode::QueryPkeys => bytes_of(QueryPkeys {
                port,
                first: u32::from(input.take::<u8>()).into(),
            }),
            CommandCode::QueryGids => bytes_of(QueryGids {
                port,
                first: u32::from(input.take::<u8>()).into(),
            }),
            CommandCode::ModifyPort => bytes_of(ModifyPort {
                port,
                flags: u32::from(input.take::<u8>()).into(),
                ..ModifyPort::default()
            }),
            CommandCode::ProcessMad => bytes_of(ProcessMad {
                port,
                flags: u32::from(input.take::<u8>()).into(),
                slid: 0.into(),
                service_level: input.take(),
                reserved: [0; 5],
                mad: [input.take(); MAD_LENGTH],
            }),
            CommandCode::RegisterMr => {
                let length = 1 + usize::from(input.take::<u16>());
                let how = input.take::<u8>();
                let iova = input.take::<u64>().into();
                let mut pages = self.list(length, input).0;
                let mut flags = 0;
                if how & 0x80 != 0 {
                    flags = mr_flags::ON_DEMAND;
                    pages.first_chunk = 0.into();
                    if how & 0x40 != 0 {
                        flags |= mr_flags::NESTED;
                        pages.offset = 0.into();
                    }
                    // The length of a page of a nested list.
                    if how & 0x08 != 0 {
                        pages.offset = 0.into();
                        pages.length = (PAGE as u64).into();
                        pages.page_count = 1.into();
                    }
                }
                bytes_of(RegisterMr {
                    pd,
                    access: (access::QUEUE_PAIR | u32::from(how & 0x30)).into(),
                    flags: flags.into(),
                    iova,
                    pages,
                    ..RegisterMr::default()
                })
            }
            CommandCode::TakePageFault => {
                let (pd, key) = key_of(&self.objects.mrs, input);
                let (pd, key) = (pd.into(), key.into());
                bytes_of(TakePageFault { pd, key })
            }
            CommandCode::MapPages => {
                let (pd, key) = key_of(&self.objects.mrs, input);
                let count = 1 + input.below(20);
                let table = CHUNKS - 1;
                let page = |index: usize| self.heap.address((index % HEAP_PAGES) * PAGE);
                let entries = (0..count).map(|_| {
                    let flags = u64::from(input.take::<u8>() & 7);
                    page(input.below(HEAP_PAGES)) | flags
                });
                let bytes: Vec<u8> = entries.flat_map(u64::to_le_bytes).collect();
                self.chunks.put(table * PAGE, &bytes);
                bytes_of(MapPages {
                    pd: pd.into(),
                    key: key.into(),
                    first_page: (input.below(16) as u32).into(),
                    page_count: (count as u32).into(),
                    table: self.chunks.address(table * PAGE).into(),
                })
            }
            CommandCode::UnmapPages | CommandCode::RefusePages => {
                let (pd, key) = key_of(&self.objects.mrs, input);
                let (pd, key) = (pd.into(), key.into());
                let first_page = (input.below(16) as u32).into();
                let page_count = (1 + input.below(16) as u32).into();
                // The two commands have the same layout.
                bytes_of(UnmapPages {
                    pd,
                    key,
                    first_page,
                    page_count,
                })
            }
            CommandCode::AttachRegion => {
                let (pd, key) = key_of(&self.objects.mrs, input);
                bytes_of(AttachRegion {
                    pd: pd.into(),
                    key: key.into(),
                    page: (input.below(16) as u32).into(),
                    region: key_of(&self.objects.mrs, input).1.into(),
                })
            }
            CommandCode::DeregisterMr => {
                let (pd, key) = key_of(&self.objects.mrs, input);
                let (pd, key) = (pd.into(), key.into());
                bytes_of(DeregisterMr { pd, key })
            }
            CommandCode::AllocateMr => {
                let pages = 1 + input.below(64) as u32;
                bytes_of(AllocateMr {
                    pd,
                    max_pages: pages.into(),
                    table: self.list(8 * pages as usize, input).0,
                })
            }
            CommandCode::AllocateIntegrityMr => {
                let [elements, metadata] = [(); 2].map(|()| input.below(32) as u32);
                let length = table_length(elements, metadata) as usize;
                bytes_of(AllocateIntegrityMr {
                    pd,
                    max_elements: elements.into(),
                    max_metadata_elements: metadata.into(),
                    reserved: 0.into(),
                    table: self.list(length, input).0,
                })
            }
            CommandCode::ReregisterMr => {
                let (old, key) = key_of(&self.objects.mrs, input);
                let length = 1 + usize::from(input.take::<u16>());
                bytes_of(ReregisterMr {
                    pd: old.into(),
                    key: key.into(),
                    flags: (input.below(8) as u32).into(),
                    new_pd: pd,
                    access: (access::QUEUE_PAIR & u32::from(input.take::<u8>())).into(),
                    iova: u64::from(input.take::<u32>()).into(),
                    pages: self.list(length, input).0,
                    ..ReregisterMr::default()
                })
            }
            CommandCode::AllocateMw => bytes_of(AllocateMw {
                pd,
                mw_type: (1 + input.below(2) as u32).into(),
            }),
            CommandCode::DeallocateMw => {
                let (pd, key) = key_of(&self.objects.mws, input);
                let (pd, key) = (pd.into(), key.into());
                bytes_of(DeallocateMw { pd, key })
            }
            CommandCode::CreateCq => {
                let entries = 1 << input.below(9);
                let (pages, at) = self.list(128 + (entries * CQE_STRIDE) as usize, input);
                start = at;
                bytes_of(CreateCq {
                    context,
                    vector: (input.below(5) as u16).into(),
                    flags: (input.below(8) as u16 / 3).into(),
                    ring: layout(0, 128, entries, CQE_STRIDE),
                    pages,
                })
            }
            CommandCode::DestroyCq => bytes_of(DestroyCq {
                cqn: any(&self.objects.cqs, input).into(),
                reserved,
            }),
            CommandCode::ResizeCq => {
                let cqn = any(&self.objects.cqs, input);
                let ring = layout(0, 128, 1 << input.below(9), CQE_STRIDE);
                let (pages, at) = self.list(ring.end() as usize, input);
                start = at;
                // Sometimes an index that may be right for the consumer, which does not move.
                let index = if input.take() {
                    0
                } else {
                    input.below(8) as u32
                };
                self.heap
                    .put(at + offset::DRIVER_INDEX, &index.to_le_bytes());
                bytes_of(ResizeCq {
                    cqn: cqn.into(),
                    reserved,
                    ring,
                    pages,
                })
            }
            CommandCode::ModifyCq => bytes_of(ModifyCq {
                cqn: any(&self.objects.cqs, input).into(),
                count: (input.below(4) as u16).into(),
                period: input.pick(&[0, 1, 100, u16::MAX]).into(),
            }),
            CommandCode::CreateQp => {
                let (sges, inline) = (1 + input.below(4) as u32, input.below(128) as u32);
                let entries = 1 << input.below(7);
                let (sends, receives) = (send_stride(sges, inline), receive_stride(sges));
                let send_ring = layout(0, 1024, entries, sends);
                let second = (send_ring.end() as u32).next_multiple_of(1024);
                let recv_ring = layout(second, second + 1024, entries, receives);
                let (pages, at) = self.list(recv_ring.end() as usize, input);
                start = at;
                let shares = !self.objects.srqs.is_empty() && input.take();
                let (recv_ring, srqn) = if shares {
                    (RingLayout::absent(), any(&self.objects.srqs, input))
                } else {
                    (recv_ring, 0)
                };
                let sharing = if shares {
                    qp_flags::SHARED_RECEIVE_QUEUE
                } else {
                    0
                };
                let qp_type = input.pick(&[2, 2, 4, 1, 3, 0, 8, 9, 10, 16, 16]);
                let xrcdn = any(&self.objects.xrcds, input).into();
                let send_cqn = any(&self.objects.cqs, input).into();
                let recv_cqn = any(&self.objects.cqs, input).into();
                let (recv_ring, recv_cqn) = match QpType::try_from(qp_type) {
                    Ok(QpType::XrcTarget) => {
                        let target = CreateQp {
                            qp_type,
                            xrcdn,
                            ..CreateQp::default()
                        };
                        return (bytes_of(target), start);
                    }
                    Ok(QpType::XrcInitiator) => (RingLayout::absent(), reserved),
                    Ok(QpType::ReceiveQueue) => {
                        let queue = CreateQp {
                            context,
                            pd,
                            qp_type,
                            flags: input.pick(&RECEIVE_OPTIONS),
                            max_recv_sge: (sges as u16).into(),
                            recv_cqn,
                            recv_ring,
                            pages,
                            ..CreateQp::default()
                        };
                        return (bytes_of(queue), start);
                    }
                    _ => (recv_ring, recv_cqn),
                };
                bytes_of(CreateQp {
                    context,
                    pd,
                    qp_type,
                    flags: input.below(2) as u8 | sharing | input.pick(&RECEIVE_OPTIONS),
                    max_send_sge: (sges as u16).into(),
                    max_recv_sge: (sges as u16).into(),
                    max_inline: (inline as u16).into(),
                    send_cqn,
                    recv_cqn,
                    send_ring,
                    recv_ring,
                    pages,
                    srqn: srqn.into(),
                    xrcdn: reserved,
                })
            }
            CommandCode::CreateScalingQp => {
                let entries = match input.below(8) {
                    0 => input.take::<u8>() as usize,
                    _ => 1 << input.below(4),
                };
                let mut queues = [reserved; MAX_SCALING_ENTRIES];
                let made = self
                    .qps
                    .iter()
                    .filter(|qp| qp.qp_type == QpType::ReceiveQueue.raw());
                let made: Vec<u32> = made.map(|qp| qp.qpn).collect();
                for queue in queues.iter_mut().take(entries) {
                    *queue = match input.below(16) {
                        0 => any(&self.objects.qps, input),
                        _ => any(&made, input),
                    }
                    .into();
                }
                let fields = match input.below(4) {
                    0 => input.take::<u32>(),
                    1 => hash_fields::IPV6 | hash_fields::UDP,
                    2 => hash_fields::SOURCE_IPV4,
                    _ => hash_fields::IPV4 | hash_fields::TCP,
                };
                bytes_of(CreateScalingQp {
                    context,
                    pd,
                    fields: fields.into(),
                    entries: (entries as u32).into(),
                    key: std::array::from_fn(|_| input.take()),
                    queues,
                })
            }
            CommandCode::ModifyQp | CommandCode::ModifyQpPaths => {
                let qpn = any(&self.objects.qps, input);
                let dest = any(&self.objects.qps, input);
                let mask = match input.below(4) {
                    0 => attribute::STATE,
                    1 => attribute::STATE | u32::from(input.take::<u16>()) << 1,
                    _ => MASKS[input.below(MASKS.len())],
                };
                let mut attributes = QpAttributes {
                    state: input.below(8) as u8,
                    mask: mask.into(),
                    ..attributes(dest, input)
                };
                if input.below(4) == 0 {
                    // Alone or with other attributes, and from one byte in a minute to no limit at all.
                    let others = if input.below(2) == 0 { mask } else { 0 };
                    attributes.mask = (others | attribute::RATE_LIMIT).into();
                    attributes.rate_limit = (input.take::<u32>() >> input.below(32)).into();
                    attributes.max_burst = (input.take::<u32>() >> input.below(32)).into();
                    attributes.typical_packet = input.take::<u16>().into();
                }
                if code == CommandCode::ModifyQp {
                    bytes_of(ModifyQp {
                        qpn: qpn.into(),
                        reserved,
                        attributes,
                    })
                } else {
                    let extra = attribute::ALTERNATE_PATH | attribute::PATH_MIGRATION_STATE;
                    let mask = match input.below(4) {
                        0 => mask,
                        1 => attribute::PATH_MIGRATION_STATE,
                        2 => extra,
                        _ => mask | extra,
                    };
                    bytes_of(ModifyQpPaths {
                        qpn: qpn.into(),
                        reserved,
                        attributes: QpAttributes {
                            mask: (mask | attributes.mask.get() & attribute::RATE_LIMIT).into(),
                            path_migration_state: input.below(4) as u8,
                            ..attributes
                        },
                        alternate: AlternatePath {
                            address: AddressVector {
                                sgid_index: input.below(4) as u8,
                                ..attributes.address
                            },
                            pkey_index: (input.below(3) as u16).into(),
                            port: input.below(3) as u8,
                            timeout: input.below(34) as u8,
                            reserved,
                        },
                    })
                }
            }
            CommandCode::QueryQpPaths => bytes_of(QueryQpPaths {
                qpn: any(&self.objects.qps, input).into(),
                reserved,
            }),
            CommandCode::QueryQp => bytes_of(QueryQp {
                qpn: any(&self.objects.qps, input).into(),
                reserved,
            }),
            CommandCode::DestroyQp => bytes_of(DestroyQp {
                qpn: any(&self.objects.qps, input).into(),
                reserved,
            }),
            CommandCode::CreateFlow => bytes_of(flow(&self.objects, input)),
            CommandCode::CreateTunnelFlow => {
                let [tunnel_value, tunnel_mask] = some_fields(input);
                let [inner_value, inner_mask] = some_fields(input);
                bytes_of(CreateTunnelFlow {
                    flow: flow(&self.objects, input),
                    tunnel_value,
                    tunnel_mask,
                    inner_value,
                    inner_mask,
                })
            }
            CommandCode::DestroyFlow => bytes_of(DestroyFlow {
                flow: any(&self.objects.flows, input).into(),
                reserved,
            }),
            CommandCode::QueryFlow => bytes_of(QueryFlow {
                flow: any(&self.objects.flows, input).into(),
                reserved,
            }),
            CommandCode::CreateXrcd => bytes_of(CreateXrcd::default()),
            CommandCode::DestroyXrcd => bytes_of(DestroyXrcd {
                xrcdn: any(&self.objects.xrcds, input).into(),
                reserved,
            }),
            CommandCode::CreateSrq | CommandCode::CreateXrcSrq | CommandCode::ResizeSrq => {
                let (sges, entries) = (input.below(5) as u32, 1 << input.below(7));
                let ring = layout(0, 1024, entries, receive_stride(sges));
                let (pages, at) = self.list(ring.end() as usize, input);
                start = at;
                let limit = (input.below(8) as u32).into();
                let srq = CreateSrq {
                    context,
                    pd,
                    max_sge: sges.into(),
                    limit,
                    ring,
                    pages,
                };
                if code == CommandCode::CreateSrq {
                    bytes_of(srq)
                } else if code == CommandCode::CreateXrcSrq {
                    bytes_of(CreateXrcSrq {
                        srq,
                        xrcdn: any(&self.objects.xrcds, input).into(),
                        cqn: any(&self.objects.cqs, input).into(),
                    })
                } else {
                    let srqn = any(&self.objects.srqs, input);
                    let old = self.srqs.iter().find(|srq| srq.srqn == srqn);
                    if let Some(old) = old.filter(|_| input.take()) {
                        // As a driver would write it, except for the entries.
                        let index = old.start + offset::DRIVER_INDEX;
                        let index = self.heap.get(index % (HEAP_PAGES * PAGE), 4);
                        self.heap.put(at + offset::DRIVER_INDEX, &index);
                    }
                    let srqn = srqn.into();
                    bytes_of(ResizeSrq {
                        srqn,
                        reserved,
                        ring,
                        pages,
                    })
                }
            }
            CommandCode::ModifySrq => bytes_of(ModifySrq {
                srqn: any(&self.objects.srqs, input).into(),
                limit: (input.below(64) as u32).into(),
            }),
            CommandCode::QuerySrq => bytes_of(QuerySrq {
                srqn: any(&self.objects.srqs, input).into(),
                reserved,
            }),
            CommandCode::DestroySrq => bytes_of(DestroySrq {
                srqn: any(&self.objects.srqs, input).into(),
                reserved,
            }),
        };
        (request, start)
    }

    /// Moves a queue pair to a state in which it works, connected to one of the same device.
    fn bring_up(&mut self, input: &mut Input<'_>) {
        let numbers: Vec<_> = self.qps.iter().map(|qp| (qp.qpn, qp.qp_type)).collect();
        if numbers.is_empty() {
            return;
        }
        let (qpn, qp_type) = input.pick(&numbers);
        let (dest, _) = input.pick(&numbers);
        let common = attributes(dest, input);
        self.climb(qpn, qp_type, common);
    }

    /// Moves a queue pair to a state in which it works. Returns whether every step succeeded.
    fn climb(&mut self, qpn: u32, qp_type: u8, common: QpAttributes) -> bool {
        let qp_type = QpType::try_from(qp_type).expect("the device accepted the type");
        let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
        let steps = states.into_iter().zip(World::masks(qp_type));
        let receives_only = qp_type == QpType::ReceiveQueue;
        let steps = steps.filter(|(state, _)| !receives_only || *state == QpState::ReadyToReceive);
        // After a step that fails, the next ones are tried as well.
        steps.fold(true, |done, (state, mask)| {
            let attributes = QpAttributes {
                state: state.raw(),
                mask: (mask | attribute::STATE).into(),
                ..common
            };
            let request = ModifyQp {
                qpn: qpn.into(),
                reserved: 0.into(),
                attributes,
            };
            execute(&mut self.world.nodes[0], &bytes_of(request)).is_some() && done
        })
    }

    /// Lets a frame arrive at the port.
    fn frame(&mut self, input: &mut Input<'_>) {
        let bytes = frame(input);
        self.world.deliver(Segment::of_frame(Payload::Bytes(bytes)));
    }

    /// Posts something to a queue pair and rings its doorbell.
    fn post(&mut self, input: &mut Input<'_>) {
        if self.qps.is_empty() {
            return;
        }
        let qp = &self.qps[input.below(256) % self.qps.len()];
        if !qp.send_ring.is_present() {
            return;
        }
        let opcode = input.pick(SendOpcode::ALL);
        let keys = [&[(0, LOCAL_DMA_KEY)], self.objects.mrs.as_slice()].concat();
        let (_, key) = input.pick(&keys);
        let sge = Sge {
            address: u64::from(input.take::<u16>()).into(),
            length: u32::from(input.take::<u16>()).into(),
            lkey: key.into(),
        };
        let (address, length) = (sge.address, u64::from(sge.length.get()).into());
        let next = key.wrapping_add(u32::from(input.take::<bool>()));
        let access = u32::from(input.take::<u8>()).into();
        let send = Send::new(1, opcode).immediate(key);
        let send = match opcode {
            SendOpcode::RegisterRegion => send.target(&RegisterTarget {
                iova: address,
                length,
                key: next.into(),
                access,
                page_count: (1 + input.below(4) as u32).into(),
                page_shift: 12,
                ..RegisterTarget::default()
            }),
            SendOpcode::RegisterIntegrity => send.target(&integrity_target(next, input)),
            SendOpcode::BindWindow => {
                let windows = [&[(0, 1)], self.objects.mws.as_slice()].concat();
                let window = input.pick(&windows).1;
                send.target(&BindTarget {
                    address,
                    length,
                    window: window.into(),
                    region: key.into(),
                    access,
                    ..BindTarget::default()
                })
            }
            SendOpcode::LocalInvalidate => send,
            SendOpcode::SendSegmented => {
                let size = input.take::<u8>().into();
                (send.element(sge)).segments(input.bytes(80), size)
            }
            _ => send.element(sge).rdma(address.get(), key),
        };
        let send = match QpType::try_from(qp.qp_type) {
            Ok(QpType::XrcInitiator) => send.to_srq(any(&self.objects.srqs, input)),
            _ => send,
        };
        let heap = HEAP_PAGES * PAGE;
        let index = qp.start + qp.send_ring.header_offset.get() as usize + offset::DRIVER_INDEX;
        let old = word(&self.heap.get(index % heap, 4), 0);
        let entry = qp.start + qp.send_ring.entry_offset(old) as usize;
        let bytes = send.entry();
        if entry % heap + bytes.len() <= heap {
            self.heap.put(entry % heap, &bytes);
        }
        let new = old.wrapping_add(input.pick(&[1, 1, 2, 0, 1000]));
        self.heap.put(index % heap, &new.to_le_bytes());
        let slot = qp.slot;
        for page in &self.pages {
            self.world.nodes[0].rnic.doorbell(*page, slot);
        }
    }

    /// Writes something similar to a receive to a shared receive queue.
    fn post_shared(&mut self, input: &mut Input<'_>) {
        if self.srqs.is_empty() {
            return;
        }
        let srq = &self.srqs[input.below(256) % self.srqs.len()];
        let place = input.below(32) % self.objects.mrs.len().max(1);
        let (_, key) = self.objects.mrs.get(place).copied().unwrap_or_default();
        let header = ReceiveHeader {
            wr_id: 1.into(),
            num_sge: (input.below(4) as u16).into(),
            reserved: [0; 6],
        };
        let sge = Sge {
            address: u64::from(input.take::<u16>()).into(),
            length: u32::from(input.take::<u16>()).into(),
            lkey: key.into(),
        };
        let heap = HEAP_PAGES * PAGE;
        let index = srq.start + srq.ring.header_offset.get() as usize + offset::DRIVER_INDEX;
        let old = word(&self.heap.get(index % heap, 4), 0);
        let entry = (srq.start + srq.ring.entry_offset(old) as usize) % heap;
        let bytes = [header.as_bytes(), sge.as_bytes()].concat();
        if entry + bytes.len() <= heap {
            self.heap.put(entry, &bytes);
        }
        let new = old.wrapping_add(input.pick(&[1, 1, 2, 4, 1000]));
        self.heap.put(index % heap, &new.to_le_bytes());
    }

    fn end(mut self) {
        self.world.faults = Faults::default();
        self.world.run(Duration::from_millis(20));
        check_connection(&mut self.world, &mut self.innocent);
        let Node { rnic, guest } = &mut self.world.nodes[0];
        self.objects.destroy(guest, rnic);
    }
}

/// Returns a frame that may be a packet of IP with a transport, or may only look like one.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    let mut frame = vec![0; 12];
    for _ in 0..input.below(3) {
        frame.extend([0x81, 0, 0, input.take()]);
    }
    let protocol = input.pick(&[6, 17, 1, 44]);
    match input.below(4) {
        0 => frame.extend([0x88, 0xb5]),
        1 => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol, 0]);
            frame.extend([0; 32]);
        }
        _ => {
            frame.extend([0x08, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 0, protocol]);
            frame.extend([0; 10]);
        }
    }
    frame.extend([0; 20]);
    for _ in 0..input.below(5) {
        let at = input.below(frame.len());
        frame[at] = input.take();
    }
    if input.below(4) == 0 {
        frame.truncate(input.below(frame.len()));
    }
    frame
}

/// Attribute masks of common transitions.
const MASKS: [u32; 6] = [
    attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS,
    attribute::STATE
        | attribute::ADDRESS_VECTOR
        | attribute::PATH_MTU
        | attribute::DEST_QPN
        | attribute::RQ_PSN
        | attribute::MAX_DEST_RD_ATOMIC
        | attribute::MIN_RNR_TIMER,
    attribute::STATE
        | attribute::SQ_PSN
        | attribute::TIMEOUT
        | attribute::RETRY_COUNT
        | attribute::RNR_RETRY
        | attribute::MAX_RD_ATOMIC,
    attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::QKEY,
    attribute::STATE | attribute::SQ_PSN,
    attribute::STATE
        | attribute::ADDRESS_VECTOR
        | attribute::PATH_MTU
        | attribute::DEST_QPN
        | attribute::RQ_PSN,
];

fn attributes(dest_qpn: u32, input: &mut Input<'_>) -> QpAttributes {
    QpAttributes {
        path_mtu: Mtu::Mtu1024.raw(),
        dest_qpn: dest_qpn.into(),
        access: access::QUEUE_PAIR.into(),
        qkey: 1.into(),
        port: 1,
        max_rd_atomic: 1 + input.below(4) as u8,
        max_dest_rd_atomic: 1 + input.below(4) as u8,
        min_rnr_timer: 1,
        timeout: 8,
        retry_count: 1,
        rnr_retry: 1,
        address: AddressVector {
            dgid: gid_of(0),
            ..AddressVector::default()
        },
        ..QpAttributes::default()
    }
}

fn layout(header: u32, first: u32, entries: u32, stride: u32) -> RingLayout {
    RingLayout {
        header_offset: header.into(),
        entries_offset: first.into(),
        entries: entries.into(),
        stride: stride.into(),
    }
}

/// Returns values and a mask of the fields of a flow.
fn some_fields<T: FromBytes + IntoBytes + Immutable>(input: &mut Input<'_>) -> [T; 2] {
    let (mut value, mut mask) = (T::new_zeroed(), T::new_zeroed());
    for _ in 0..input.below(4) {
        let at = input.below(size_of::<T>());
        mask.as_mut_bytes()[at] = input.take();
        value.as_mut_bytes()[at] = mask.as_bytes()[at] & input.take::<u8>();
    }
    [value, mask]
}

/// Returns a request for a flow.
fn flow(objects: &Objects, input: &mut Input<'_>) -> CreateFlow {
    let [value, mask] = some_fields(input);
    CreateFlow {
        qpn: any(&objects.qps, input).into(),
        flow_type: input.pick(&[0, 0, 0, 1, 2, 3]),
        port: 1,
        priority: (input.below(3) as u16).into(),
        flags: input.pick(&[0u32, 0, 0x2, 0x4, 0x100, 0x102]).into(),
        tag: input.pick(&[0u32, 0, 1, 0xff_ffff, 1 << 24]).into(),
        value,
        mask,
    }
}

/// Returns one of the numbers, or an arbitrary one if there are none.
fn any(numbers: &[u32], input: &mut Input<'_>) -> u32 {
    let place = input.below(16);
    numbers
        .get(place % numbers.len().max(1))
        .copied()
        .unwrap_or(place as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_of_each_type_are_brought_up() {
        let mut scene = Scene::new();
        for &qp_type in QpType::ALL {
            // Only InfiniBand ports have the former, and the latter are not brought up.
            if matches!(qp_type, QpType::Smi | QpType::ReceiveScaling) {
                continue;
            }
            let Node { rnic, guest } = &mut scene.world.nodes[0];
            let cq = guest.cq(rnic, 16, 0);
            let xrcdn = match qp_type {
                QpType::XrcTarget => guest.xrcd(rnic),
                _ => 0,
            };
            let options = QpOptions {
                qp_type,
                entries: 4,
                xrcdn,
                ..QpOptions::default()
            };
            let qp = guest.try_qp(rnic, &options, cq.cqn, cq.cqn).expect("qp");
            let common = attributes(qp.qpn, &mut Input::new(&[]));
            assert!(scene.climb(qp.qpn, qp_type.raw(), common), "{qp_type:?}");
        }
    }
}
