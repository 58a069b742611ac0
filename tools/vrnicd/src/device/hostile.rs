// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A hostile device for tests of drivers, controlled by a random seed.
//!
//! It forges replies, answers late, twice or never, raises events without a cause, and scribbles over the rings of the
//! driver's kernel. In everything else, the engine behaves as usual. A driver can defend itself against what a device
//! tells it, but not against a device that writes to memory at the wrong time. So this device writes only to memory
//! that the driver has given it, and the engine stops using memory before the driver is told that it may free it.

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

/// Settings of hostile devices. The devices are honest at first; each SIGUSR1 toggles that for drivers that start
/// afterwards.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Names of the devices.
    pub devices: Vec<String>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// On average, one in this many commands is mistreated; at least 1.
    #[serde(default = "default_one_in")]
    pub one_in: u32,
}

fn default_one_in() -> u32 {
    30
}

/// Interval between actions without a cause.
const PERIOD: Duration = Duration::from_millis(3);
/// Longest delay of a late reply in milliseconds.
const LATENESS_MS: u32 = 1200;
/// Number of words remembered from replies. Some of them are numbers of objects.
const WORDS: usize = 64;
/// Largest number of events without a cause in a row.
const STORM: u32 = 40;

/// Effect of a command on what the device has of the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// The device may use memory from now on.
    Takes,
    /// The device forgets an object or part of one, and stops using its memory if it has any. The driver may forget it
    /// whatever the reply says, so the device must.
    GivesBack,
    /// Both: the device moves from old memory to new.
    Moves,
    /// No effect.
    Nothing,
}

/// Returns the effect of the command in `request`, or [`Effect::Nothing`] if that is not a command.
fn effect(request: &[u8]) -> Effect {
    code(request).map_or(Effect::Nothing, effect_of)
}

/// Returns the effect of a command.
fn effect_of(code: CommandCode) -> Effect {
    use CommandCode as Code;
    match code {
        Code::CreateContext
        | Code::RegisterMr
        | Code::AllocateMr
        | Code::AllocateIntegrityMr
        | Code::MapPages
        | Code::CreateCq
        | Code::CreateQp
        | Code::CreateSrq
        | Code::CreateCompletionCounter
        | Code::CreateXrcSrq => Effect::Takes,
        Code::ClearGid
        | Code::DestroyContext
        | Code::DestroyPd
        | Code::DeregisterMr
        | Code::DeallocateMw
        | Code::UnmapPages
        | Code::DestroyCq
        | Code::DestroyQp
        | Code::DestroySrq
        | Code::DetachMulticast
        | Code::DestroyCounterSet
        | Code::DestroyCompletionCounter
        | Code::DestroyXrcd
        | Code::DestroyFlow => Effect::GivesBack,
        Code::ReregisterMr | Code::ResizeCq | Code::ResizeSrq => Effect::Moves,
        Code::QueryDevice
        | Code::QueryFlow
        | Code::QueryPort
        | Code::SetGid
        | Code::QueryCounters
        | Code::SetMtu
        | Code::SetPortState
        | Code::QueryClock
        | Code::QuerySubnetPort
        | Code::QueryPkeys
        | Code::QueryGids
        | Code::ModifyPort
        | Code::ProcessMad
        | Code::RingDoorbell
        | Code::NameContext
        | Code::CreatePd
        | Code::AllocateMw
        | Code::TakePageFault
        | Code::RefusePages
        | Code::AttachRegion
        | Code::ModifyCq
        | Code::ModifyQp
        | Code::QueryQp
        | Code::ModifyQpPaths
        | Code::QueryQpPaths
        | Code::ModifySrq
        | Code::QuerySrq
        | Code::AttachMulticast
        | Code::CreateCounterSet
        | Code::BindCounterSet
        | Code::QueryCounterSet
        | Code::AttachCompletionCounter
        | Code::ModifyCompletionCounter
        | Code::QueryCompletionCounter
        | Code::CreateXrcd
        | Code::CreateScalingQp
        | Code::CreateFlow
        | Code::CreateTunnelFlow => Effect::Nothing,
    }
}

fn code(request: &[u8]) -> Option<CommandCode> {
    let (header, _) = CommandHeader::read_from_prefix(request).ok()?;
    CommandCode::try_from(header.code.get()).ok()
}

/// Returns the part of the request after its header.
fn body<T: FromBytes>(request: &[u8]) -> Option<T> {
    let (_, rest) = CommandHeader::read_from_prefix(request).ok()?;
    Some(T::read_from_prefix(rest).ok()?.0)
}

/// Returns the part of the reply after its header, if the reply reports success.
fn success<T: FromBytes>(reply: &[u8]) -> Option<T> {
    let (header, rest) = ReplyHeader::read_from_prefix(reply).ok()?;
    (header.status.get() == Status::Ok.raw()).then_some(())?;
    Some(T::read_from_prefix(rest).ok()?.0)
}

/// How a reply is delivered to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Now,
    Late(Duration),
    Twice,
    Never,
    /// In the used ring with this descriptor number and this length. `u32::MAX` stands for the right number.
    As(u32, u32),
}

/// What happens to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Whether the engine executes it.
    pub executes: bool,
    /// Status of the reply, if it is not the engine's.
    status: Option<u32>,
    /// Whether the reply is forged.
    forged: bool,
    delivery: Delivery,
}

impl Plan {
    /// The behaviour of an honest device.
    pub const HONEST: Self = Self {
        executes: true,
        status: None,
        forged: false,
        delivery: Delivery::Now,
    };
}

/// Memory of the driver's kernel that the device may write to.
struct Ring {
    destroyed_by: CommandCode,
    number: u32,
    pages: Vec<u64>,
}

/// State of a hostile device.
pub struct Hostile {
    chance: ChaCha8Rng,
    one_in: u32,
    /// Whether it is hostile now.
    awake: bool,
    /// Words of replies; some are numbers of objects.
    words: Vec<u32>,
    /// The kernel's context.
    kernel: Option<u32>,
    rings: Vec<Ring>,
    /// Time of the next action without a cause.
    next: Instant,
    /// Number of events without a cause that are still to come.
    storm: u32,
}

impl Hostile {
    /// Creates the state from `settings`.
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

    /// Sets whether the device is hostile to the driver that is starting.
    pub fn begin(&mut self, awake: bool) {
        self.awake = awake;
    }

    /// Forgets all memory that the driver gave the device, after the driver has reset it.
    pub fn forget(&mut self) {
        self.rings.clear();
        self.kernel = None;
        self.storm = 0;
    }

    /// Returns when the device wants a turn, if it does.
    pub fn deadline(&self) -> Option<Instant> {
        self.awake.then_some(self.next)
    }

    /// Returns a random number less than `end`, which is not 0.
    fn below(&mut self, end: u32) -> u32 {
        self.chance.next_u32() % end
    }

    /// Returns a random number that could be taken for the number of an object.
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

    /// Decides what happens to the command in `request`.
    pub fn plan(&mut self, request: &[u8]) -> Plan {
        let effect = effect(request);
        self.forget_destroyed(request);
        if !self.awake || self.below(self.one_in) != 0 {
            return Plan::HONEST;
        }
        let mut plan = Plan::HONEST;
        match self.below(100) {
            0..30 => {
                // An error of any kind.
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

    /// Turns the engine's reply, which is empty if the engine did not execute the command, into the planned one. `room`
    /// is the size of the driver's buffer, `length` that of an honest reply.
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

    /// Sends a reply as planned. Returns true if the driver wants an interrupt.
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
                // Does not write the reply again: the driver may have freed its memory by now.
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

    /// Returns whether an action without a cause is due. If so, may scribble over a ring or begin a storm of events.
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

    /// Occasionally returns a queue whose interrupt is to be raised without a cause.
    pub fn spurious(&mut self, queues: u16) -> Option<u16> {
        (self.below(8) == 0).then(|| self.below(queues.into()) as u16)
    }

    /// Returns, very rarely, true: the device is then to ask for a reset without a cause.
    pub fn gives_up(&mut self) -> bool {
        self.below(20_000) == 0
    }

    /// Returns an event without a cause, if a storm is under way: for the queue of asynchronous events if
    /// `asynchronous`, and otherwise for a queue of completion events.
    pub fn event(&mut self, asynchronous: bool) -> Option<Vec<u8>> {
        self.storm = self.storm.checked_sub(1)?;
        let number = self.word().into();
        let mut event = if asynchronous {
            let known = self.below(EventType::ALL.len() as u32) as usize;
            let event_type = match self.below(8) {
                0 => self.chance.next_u32() as u16,
                // This event would stop the driver for good and end the test early.
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

    /// Remembers what an honest successful command lets the device use.
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

    /// Forgets memory that a command takes away from the device.
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

    /// Changes words of one of the kernel's rings.
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
            // The header is at the beginning, and the first entries follow it.
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

/// Runs `access` on a word of guest memory, if the word is in writable guest memory.
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

/// Returns the 64-bit word at `address`, which nothing changes concurrently.
fn long(memory: &GuestMemory, address: u64) -> Option<u64> {
    let half = |at| with_word(memory, at, |word| u64::from(word.load(Ordering::Relaxed)));
    Some(half(address)? | half(address + 4)? << 32)
}

/// Returns the pages of a list. The device has already checked that they are guest memory.
fn pages(memory: &GuestMemory, list: &PageList) -> Vec<u64> {
    // For a larger page, this is the first of its smallest pages.
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

    /// Returns the plans and replies of a seed for some commands.
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
            // A driver that is told of a failure, or gets a forged reply, frees the memory.
            let plan = hostile.plan(&create);
            assert!(!plan.executes || (plan.status.is_none() && !plan.forged));
            assert!(hostile.plan(&destroy).executes);
            // A driver that is told of success frees the old memory.
            let plan = hostile.plan(&resize);
            assert!(plan.executes || plan.status != Some(0) && !plan.forged);
        }
    }

    #[test]
    fn each_command_is_mistreated_and_the_device_forgets_what_the_driver_does() {
        let mut hostile = awake(4);
        for &code in CommandCode::ALL {
            let request = request(code, &[0; 64]);
            let plans: Vec<_> = (0..1000).map(|_| hostile.plan(&request)).collect();
            assert!(plans.iter().any(|plan| plan.status.is_some()), "{code:?}");
            let name = format!("{code:?}");
            let ends = ["Clear", "De", "Unmap"]
                .iter()
                .any(|end| name.starts_with(end));
            assert_eq!(plans.iter().all(|plan| plan.executes), ends, "{code:?}");
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
        // One chain with 8 writable bytes, which the device changes itself when it returns the chain.
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
