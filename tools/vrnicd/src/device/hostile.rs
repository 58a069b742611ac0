// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A hostile device, driven by a seed, for tests of drivers.
//!
//! It lies in replies, answers late, twice or never, raises events that nothing caused, and scribbles over the rings of
//! the driver's kernel. The engine does everything else as usual. A driver can defend itself against what a device
//! says, but not against what a device does with memory that the driver gave it. So this device writes only where the
//! driver lets it, and the engine no longer uses memory that the driver was told it may free.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde::Deserialize;
use vrnic_engine::time::Instant;
use vrnic_wire::command::{
    CommandCode, CommandHeader, ContextCreated, ContextKind, CqCreated, CreateContext, CreateCq,
    CreateQp, CreateSrq, QpCreated, ReplyHeader, SrqCreated, Status,
};
use vrnic_wire::event::{AsyncEvent, CompletionEvent, EventType};
use vrnic_wire::memory::{CHUNK_PAGES, PageList};
use zerocopy::{FromBytes, IntoBytes};

use super::session::Late;
use crate::guest_memory::GuestMemory;
use crate::virtio::queue::{BadQueue, Chain, Virtqueue};

/// How devices are hostile. They are honest at first; SIGUSR1 changes that for drivers to come, and changes it back.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Names of the devices.
    pub devices: Vec<String>,
    /// Where chance starts.
    pub seed: u64,
    /// One of so many commands is answered by a lie; at least 1.
    #[serde(default = "default_one_in")]
    pub one_in: u32,
}

fn default_one_in() -> u32 {
    30
}

/// Time between things that happen without a cause.
const PERIOD: Duration = Duration::from_millis(3);
/// Longest time that a late answer is late.
const LATENESS_MS: u32 = 1200;
/// Words of replies that are remembered: numbers of objects among them.
const WORDS: usize = 64;
/// Most events at once that nothing caused.
const STORM: u32 = 40;

/// What a command does to memory that it names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// The device may use it from now on.
    Takes,
    /// The device does not use some of it any more.
    GivesBack,
    /// Both.
    Moves,
    /// None of this.
    Nothing,
}

/// What the command in `request` does to memory, if it is one.
fn effect(request: &[u8]) -> Effect {
    use CommandCode as Code;
    match code(request) {
        Some(
            Code::CreateContext
            | Code::RegisterMr
            | Code::AllocateMr
            | Code::MapPages
            | Code::CreateCq
            | Code::CreateQp
            | Code::CreateSrq,
        ) => Effect::Takes,
        Some(
            Code::DestroyContext
            | Code::DeregisterMr
            | Code::UnmapPages
            | Code::DestroyCq
            | Code::DestroyQp
            | Code::DestroySrq,
        ) => Effect::GivesBack,
        Some(Code::ReregisterMr | Code::ResizeCq | Code::ResizeSrq) => Effect::Moves,
        _ => Effect::Nothing,
    }
}

fn code(request: &[u8]) -> Option<CommandCode> {
    let (header, _) = CommandHeader::read_from_prefix(request).ok()?;
    CommandCode::try_from(header.code.get()).ok()
}

/// The request behind its header.
fn body<T: FromBytes>(request: &[u8]) -> Option<T> {
    let (_, rest) = CommandHeader::read_from_prefix(request).ok()?;
    Some(T::read_from_prefix(rest).ok()?.0)
}

/// The reply behind its header, if it says that all went well.
fn success<T: FromBytes>(reply: &[u8]) -> Option<T> {
    let (header, rest) = ReplyHeader::read_from_prefix(reply).ok()?;
    (header.status.get() == Status::Ok.raw()).then_some(())?;
    Some(T::read_from_prefix(rest).ok()?.0)
}

/// How an answer reaches the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Now,
    Late(Duration),
    Twice,
    Never,
    /// As of a buffer of that number, and so many bytes long.
    As(u32, u32),
}

/// What becomes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Whether the engine executes it.
    pub executes: bool,
    /// Status of the reply, if not the engine's.
    status: Option<u32>,
    /// Whether the reply is made up.
    forged: bool,
    delivery: Delivery,
}

impl Plan {
    /// What an honest device does.
    pub const HONEST: Self = Self {
        executes: true,
        status: None,
        forged: false,
        delivery: Delivery::Now,
    };
}

/// Memory of the driver's kernel that the device may write.
struct Ring {
    destroyed_by: CommandCode,
    number: u32,
    pages: Vec<u64>,
}

/// A device's ill will.
pub struct Hostile {
    chance: ChaCha8Rng,
    one_in: u32,
    /// Whether it is hostile now.
    awake: bool,
    /// Parts of replies, which name objects.
    words: Vec<u32>,
    /// The context of the kernel.
    kernel: Option<u32>,
    rings: Vec<Ring>,
    /// When something happens without a cause.
    next: Instant,
    /// Events that nothing caused and that are still to come.
    storm: u32,
}

impl Hostile {
    /// One with that seed.
    pub fn new(settings: &Settings) -> Self {
        Self {
            chance: ChaCha8Rng::seed_from_u64(settings.seed),
            one_in: settings.one_in.max(1),
            awake: false,
            words: Vec::new(),
            kernel: None,
            rings: Vec::new(),
            next: Instant::default(),
            storm: 0,
        }
    }

    /// A driver begins to use the device, and is to find it hostile, or is not.
    pub fn begin(&mut self, awake: bool) {
        self.awake = awake;
    }

    /// The driver reset the device: all that it let the device use is gone.
    pub fn forget(&mut self) {
        self.rings.clear();
        self.kernel = None;
        self.storm = 0;
    }

    /// When it wants a turn, if it does.
    pub fn deadline(&self) -> Option<Instant> {
        self.awake.then_some(self.next)
    }

    /// A number less than `end`, which is not 0.
    fn below(&mut self, end: u32) -> u32 {
        self.chance.next_u32() % end
    }

    /// Something that may be taken for the number of an object.
    fn word(&mut self) -> u32 {
        match self.below(8) {
            0 => 0,
            1 => u32::MAX,
            2 => self.chance.next_u32(),
            3 => self.below(64),
            _ if self.words.is_empty() => 1,
            _ => {
                let index = self.below(self.words.len() as u32);
                self.words[index as usize]
            }
        }
    }

    /// What becomes of the command in `request`.
    pub fn plan(&mut self, request: &[u8]) -> Plan {
        let effect = effect(request);
        self.forget_destroyed(request);
        if !self.awake || self.below(self.one_in) != 0 {
            return Plan::HONEST;
        }
        let mut plan = Plan::HONEST;
        match self.below(100) {
            0..30 => {
                // An error, of any kind.
                plan.status = Some(match self.below(4) {
                    0 => self.chance.next_u32(),
                    _ => 1 + self.below(10),
                });
                plan.executes = effect == Effect::GivesBack;
            }
            30..60 if effect != Effect::Moves => {
                plan.status = Some(Status::Ok.raw());
                plan.forged = true;
                plan.executes = effect == Effect::GivesBack;
            }
            60..85 => {
                let delay = self.below(LATENESS_MS);
                plan.delivery = Delivery::Late(Duration::from_millis(delay.into()));
            }
            85..92 if effect == Effect::Nothing => plan.delivery = Delivery::Twice,
            92..96 => {
                plan.executes = effect == Effect::GivesBack;
                plan.delivery = Delivery::As(u32::MAX, self.below(64));
            }
            96..98 => {
                plan.executes = effect == Effect::GivesBack;
                plan.delivery = Delivery::As(self.word(), self.word());
            }
            98 => {
                plan.executes = effect == Effect::GivesBack;
                plan.delivery = Delivery::Never;
            }
            _ => {}
        }
        plan
    }

    /// Makes of the engine's reply, which is empty if it executed nothing, the one of the plan. `room` is what the
    /// driver has for it, and `length` what an honest one has.
    pub fn reply(&mut self, plan: &Plan, reply: &mut Vec<u8>, length: usize, room: usize) {
        if plan.forged || plan.status.is_some() || reply.is_empty() {
            let status = plan.status.unwrap_or(Status::DeviceFailed.raw());
            let claimed = match status {
                0 => (length - size_of::<ReplyHeader>()) as u32,
                _ => 0,
            };
            let header = ReplyHeader {
                status: status.into(),
                length: match self.below(4) {
                    0 => self.word().into(),
                    _ => claimed.into(),
                },
                vendor_error: self.word().into(),
                reserved: 0.into(),
            };
            reply.clear();
            reply.extend_from_slice(header.as_bytes());
            if status == Status::Ok.raw() {
                while reply.len() < length {
                    let word = self.word();
                    reply.extend_from_slice(&word.to_le_bytes());
                }
            }
        }
        match self.below(8) {
            0 if plan.forged => reply.truncate(self.below(reply.len() as u32 + 1) as usize),
            1 if plan.forged => reply.resize(room, 0xa5),
            _ => {}
        }
        reply.truncate(room);
    }

    /// Sends a reply as planned. True if the driver wants an interrupt.
    #[expect(clippy::too_many_arguments, reason = "a reply and its ways")]
    pub(super) fn deliver(
        &mut self,
        plan: &Plan,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        chain: Chain,
        reply: Vec<u8>,
        late: &mut Vec<Late>,
        now: Instant,
    ) -> Result<bool, BadQueue> {
        if plan.executes && !plan.forged && plan.status.is_none() {
            self.remember(memory, &chain.request, &reply);
        }
        match plan.delivery {
            Delivery::Now => queue.complete(&chain, &reply),
            Delivery::Twice => {
                queue.complete(&chain, &reply)?;
                // The driver may have freed the memory of the reply by now.
                queue.complete_as(chain.head().into(), reply.len() as u32)
            }
            Delivery::Late(delay) => {
                let due = now + delay;
                late.push(Late { due, chain, reply });
                Ok(false)
            }
            Delivery::Never => Ok(false),
            Delivery::As(u32::MAX, written) => queue.complete_as(chain.head().into(), written),
            Delivery::As(head, written) => queue.complete_as(head, written),
        }
    }

    /// Whether it is time for what has no cause; then scribbles over a ring, or begins a storm of events.
    pub fn act(&mut self, memory: &GuestMemory, now: Instant) -> bool {
        if !self.awake || now < self.next {
            return false;
        }
        self.next = now + PERIOD;
        match self.below(4) {
            0 => self.storm = 1 + self.below(STORM),
            1 => self.scribble(memory),
            _ => {}
        }
        true
    }

    /// A queue whose interrupt is raised for nothing; sometimes.
    pub fn spurious(&mut self, queues: u16) -> Option<u16> {
        (self.below(8) == 0).then(|| self.below(queues.into()) as u16)
    }

    /// Whether the device says for no reason that it needs a reset; very seldom.
    pub fn gives_up(&mut self) -> bool {
        self.below(20_000) == 0
    }

    /// An event that nothing caused, for the queue of asynchronous events or, otherwise, of completion events.
    pub fn event(&mut self, asynchronous: bool) -> Option<Vec<u8>> {
        self.storm = self.storm.checked_sub(1)?;
        let number = self.word().into();
        let mut event = if asynchronous {
            let known = self.below(EventType::ALL.len() as u32) as usize;
            let event_type = match self.below(8) {
                0 => self.chance.next_u32() as u16,
                // It would stop the driver for good, and what is to come with it.
                _ if EventType::ALL[known] == EventType::DeviceFatal => 9,
                _ => EventType::ALL[known].raw(),
            };
            AsyncEvent {
                event_type: event_type.into(),
                number,
                ..AsyncEvent::default()
            }
            .as_bytes()
            .to_vec()
        } else {
            CompletionEvent {
                cqn: number,
                ..CompletionEvent::default()
            }
            .as_bytes()
            .to_vec()
        };
        if self.below(16) == 0 {
            event.truncate(self.below(event.len() as u32) as usize);
        }
        Some(event)
    }

    /// Remembers what an honest success lets the device use.
    fn remember(&mut self, memory: &GuestMemory, request: &[u8], reply: &[u8]) {
        if success::<[u8; 0]>(reply).is_some() {
            for word in reply[size_of::<ReplyHeader>()..].chunks_exact(4).take(2) {
                let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                let at = self.below(WORDS as u32) as usize;
                match self.words.get_mut(at) {
                    Some(old) => *old = word,
                    None => self.words.push(word),
                }
            }
        }
        let ring = match code(request) {
            Some(CommandCode::CreateContext) => {
                let created = body::<CreateContext>(request).zip(success::<ContextCreated>(reply));
                if let Some((request, reply)) = created
                    && request.kind == ContextKind::Kernel.raw()
                {
                    self.kernel = Some(reply.context.get());
                }
                return;
            }
            Some(CommandCode::CreateCq) => body::<CreateCq>(request)
                .zip(success::<CqCreated>(reply))
                .map(|(request, reply)| {
                    let number = reply.cqn.get();
                    (
                        request.context,
                        request.pages,
                        number,
                        CommandCode::DestroyCq,
                    )
                }),
            Some(CommandCode::CreateQp) => body::<CreateQp>(request)
                .zip(success::<QpCreated>(reply))
                .map(|(request, reply)| {
                    let number = reply.qpn.get();
                    (
                        request.context,
                        request.pages,
                        number,
                        CommandCode::DestroyQp,
                    )
                }),
            Some(CommandCode::CreateSrq) => body::<CreateSrq>(request)
                .zip(success::<SrqCreated>(reply))
                .map(|(request, reply)| {
                    let number = reply.srqn.get();
                    (
                        request.context,
                        request.pages,
                        number,
                        CommandCode::DestroySrq,
                    )
                }),
            _ => None,
        };
        if let Some((context, list, number, destroyed_by)) = ring
            && Some(context.get()) == self.kernel
        {
            let pages = pages(memory, &list);
            self.rings.push(Ring {
                destroyed_by,
                number,
                pages,
            });
        }
    }

    /// Forgets what a command takes away from the device.
    fn forget_destroyed(&mut self, request: &[u8]) {
        let (Some(code), Some(number)) = (code(request), body::<[u8; 4]>(request)) else {
            return;
        };
        let number = u32::from_le_bytes(number);
        self.rings
            .retain(|ring| (ring.destroyed_by, ring.number) != (code, number));
        if code == CommandCode::DestroyContext && Some(number) == self.kernel {
            self.rings.clear();
        }
    }

    /// Changes words of a ring of the kernel.
    fn scribble(&mut self, memory: &GuestMemory) {
        if self.rings.is_empty() {
            return;
        }
        let ring = self.below(self.rings.len() as u32) as usize;
        let count = self.rings[ring].pages.len() as u32;
        if count == 0 {
            return;
        }
        let page = self.below(count) as usize;
        let page = self.rings[ring].pages[page];
        for _ in 0..=self.below(6) {
            // The headers are at the beginning, and the first entries behind them.
            let offset = match self.below(3) {
                0 => self.below(64) * 4,
                1 => self.below(16) * 4,
                _ => self.below(1024) * 4,
            };
            let change = self.word();
            let (kind, step, bit) = (self.below(4), self.below(4), self.below(32));
            with_word(memory, page + u64::from(offset), |word| {
                let old = word.load(Ordering::Relaxed);
                let new = match kind {
                    0 => old.wrapping_add(1 + step),
                    1 => old ^ 1 << bit,
                    2 => old.wrapping_sub(1),
                    _ => change,
                };
                word.store(new, Ordering::Release);
            });
        }
    }
}

/// Runs `access` on a word of guest memory, if it is that.
fn with_word<R>(
    memory: &GuestMemory,
    address: u64,
    access: impl FnOnce(&AtomicU32) -> R,
) -> Option<R> {
    let piece = memory.piece(address, 4)?;
    if !piece.writable || piece.length != 4 {
        return None;
    }
    piece.mapping.with_u32(piece.offset, access)
}

/// The 64-bit word at `address`, of which nobody changes one half.
fn long(memory: &GuestMemory, address: u64) -> Option<u64> {
    let half = |at| with_word(memory, at, |word| u64::from(word.load(Ordering::Relaxed)));
    Some(half(address)? | half(address + 4)? << 32)
}

/// The pages of a list, of which the device has made sure that they are memory of the guest.
fn pages(memory: &GuestMemory, list: &PageList) -> Vec<u64> {
    // Larger pages than the smallest begin with one of those.
    const HEADER: u64 = 16;
    let mut pages = Vec::new();
    let mut chunk = list.first_chunk.get();
    let mut left = list.page_count.get() as usize;
    while left > 0 {
        let here = left.min(CHUNK_PAGES);
        for index in 0..here as u64 {
            match long(memory, chunk + HEADER + index * 8) {
                Some(page) => pages.push(page),
                None => return pages,
            }
        }
        left -= here;
        chunk = match long(memory, chunk) {
            Some(next) if left > 0 => next,
            _ => break,
        };
    }
    pages
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vrnic_wire::command::{DestroyCq, QueryDevice};

    use super::*;
    use crate::guest_memory::tests::memfd;
    use crate::virtio::QueueSetup;

    fn hostile(seed: u64) -> Hostile {
        Hostile::new(&Settings {
            devices: Vec::new(),
            seed,
            one_in: 1,
        })
    }

    fn awake(seed: u64) -> Hostile {
        let mut hostile = hostile(seed);
        hostile.begin(true);
        hostile
    }

    fn request(code: CommandCode, body: &[u8]) -> Vec<u8> {
        let header = CommandHeader {
            code: code.raw().into(),
            reserved: 0.into(),
            length: (body.len() as u32).into(),
        };
        [header.as_bytes(), body].concat()
    }

    /// Plans and replies of a seed for some commands.
    fn answers(seed: u64) -> Vec<(Plan, Vec<u8>)> {
        let mut hostile = awake(seed);
        let query = request(CommandCode::QueryDevice, QueryDevice {}.as_bytes());
        let create = request(CommandCode::CreateCq, &[0; 56]);
        [query, create]
            .iter()
            .cycle()
            .take(4000)
            .map(|request| {
                let plan = hostile.plan(request);
                let mut reply = Vec::new();
                hostile.reply(&plan, &mut reply, 24, 40);
                (plan, reply)
            })
            .collect()
    }

    #[test]
    fn a_seed_says_it_all() {
        assert_eq!(answers(7), answers(7));
        assert_ne!(answers(7), answers(8));
    }

    #[test]
    fn lies_fit_their_buffers_and_are_of_all_kinds() {
        let answers = answers(1);
        assert!(answers.iter().all(|(_, reply)| reply.len() <= 40));
        let has = |what: &dyn Fn(&Plan) -> bool| answers.iter().any(|(plan, _)| what(plan));
        assert!(has(&|plan| plan.forged));
        assert!(has(&|plan| plan.status.is_some_and(|status| status != 0)));
        assert!(has(&|plan| matches!(plan.delivery, Delivery::Late(_))));
        assert!(has(&|plan| plan.delivery == Delivery::Twice));
        assert!(has(&|plan| plan.delivery == Delivery::Never));
        assert!(has(&|plan| matches!(plan.delivery, Delivery::As(..))));
    }

    #[test]
    fn what_the_driver_may_free_is_not_used() {
        let mut hostile = awake(3);
        let create = request(CommandCode::CreateCq, &[0; 56]);
        let resize = request(CommandCode::ResizeCq, &[0; 64]);
        let destroy = request(
            CommandCode::DestroyCq,
            DestroyCq {
                cqn: 5.into(),
                reserved: 0.into(),
            }
            .as_bytes(),
        );
        for _ in 0..1000 {
            // Who is told that it failed, or something else, frees the memory.
            let plan = hostile.plan(&create);
            assert!(!plan.executes || (plan.status.is_none() && !plan.forged));
            assert!(hostile.plan(&destroy).executes);
            // Who is told that it went well frees the old.
            let plan = hostile.plan(&resize);
            assert!(plan.executes || plan.status != Some(0) && !plan.forged);
        }
    }

    #[test]
    fn rings_are_forgotten_before_they_are_destroyed() {
        let mut hostile = awake(3);
        hostile.rings.push(Ring {
            destroyed_by: CommandCode::DestroyCq,
            number: 5,
            pages: Vec::new(),
        });
        let destroy =
            |number: u32| request(CommandCode::DestroyCq, &u64::from(number).to_le_bytes());
        hostile.plan(&destroy(6));
        assert_eq!(hostile.rings.len(), 1);
        hostile.plan(&destroy(5));
        assert!(hostile.rings.is_empty());
    }

    #[test]
    fn it_is_honest_unless_it_is_told_not_to_be() {
        let mut hostile = hostile(1);
        let query = request(CommandCode::QueryDevice, &[]);
        assert!((0..100).all(|_| hostile.plan(&query) == Plan::HONEST));
        assert_eq!(hostile.deadline(), None);
        hostile.begin(true);
        assert!((0..100).any(|_| hostile.plan(&query) != Plan::HONEST));
        assert!(hostile.deadline().is_some());
    }

    #[test]
    fn an_answer_that_comes_twice_is_written_once() {
        const DESCRIPTORS: u64 = 0x1000;
        const AVAILABLE: u64 = 0x2000;
        const USED: u64 = 0x3000;
        let memory = Arc::new(GuestMemory::new());
        (memory.map(0x1000, 0x3000, &memfd(0x4000), 0, true)).expect("memory");
        let word = |address| {
            with_word(&memory, address, |word| word.load(Ordering::Relaxed)).expect("memory")
        };
        let set = |address, value| {
            with_word(&memory, address, |word| {
                word.store(value, Ordering::Relaxed);
            })
            .expect("memory");
        };
        // One chain: 8 bytes to write, which the device changes itself when it gives them back.
        let reply = USED + 4;
        set(DESCRIPTORS, reply as u32);
        set(DESCRIPTORS + 8, 8);
        set(DESCRIPTORS + 12, 2);
        set(AVAILABLE, 1 << 16);
        let setup = QueueSetup {
            index: 0,
            size: 4,
            descriptors: DESCRIPTORS,
            driver_area: AVAILABLE,
            device_area: USED,
        };
        let mut queue = Virtqueue::new(&setup, memory.clone()).expect("a queue");
        let chain = queue.pop(64).expect("a good queue").expect("a chain");
        let plan = Plan {
            executes: false,
            delivery: Delivery::Twice,
            ..Plan::HONEST
        };
        let (now, answer) = (Instant::default(), vec![0xaa; 8]);
        awake(1)
            .deliver(
                &plan,
                &mut queue,
                &memory,
                chain,
                answer,
                &mut Vec::new(),
                now,
            )
            .expect("a good queue");
        assert_eq!(word(USED) >> 16, 2);
        for entry in [reply, reply + 8] {
            assert_eq!((word(entry), word(entry + 4)), (0, 8));
        }
    }

    #[test]
    fn storms_end() {
        let mut hostile = awake(9);
        hostile.storm = STORM;
        let events = std::iter::from_fn(|| hostile.event(true)).count();
        assert_eq!(events, STORM as usize);
    }
}
