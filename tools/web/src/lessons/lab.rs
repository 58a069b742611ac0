// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The lab in which lessons take place: a separate vrnicd with four RNICs, and the programs that use them. This process
//! plays the guests (`vrnic-native`), so no VM and no privilege is needed. Everything else is the same as for programs
//! in a VM: libvrnic's queues, vfio-user, the device.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use vrnic::ring::send::Target;
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_native::queues::{Cq, Mr, Qp, Srq, Terms, request};
use vrnic_native::vm::Vm;
use vrnic_wire::completion::{Cqe, Opcode, Status, flags};
use vrnic_wire::event::{AsyncEvent, EventType};
use vrnic_wire::port::Mtu;
use vrnic_wire::work::SendOpcode;
use vrnicd::control::client::Client;

/// Size of a guest's RAM. What one run of a lesson uses, less than 200 KiB, is never freed.
const RAM: usize = 1 << 30;
/// Length of the region that each program registers, in bytes.
const REGION: usize = 16 << 10;
/// Offset in it at which messages arrive.
pub const INBOX: usize = 8 << 10;
/// Length of a receive in bytes.
const RECEIVE: usize = 256;
/// Number of entries of a queue.
const ENTRIES: u32 = 16;
/// Largest number of bytes of memory that are shown.
const MOST_SHOWN: usize = 80;
/// How long an expected event may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Names of the RNICs, which are also those of the programs, and further lines of their configuration.
const RNICS: [(&str, &str); 4] = [
    ("a", ""),
    ("b", ""),
    ("c", "recovery = \"go-back-n\""),
    ("d", "recovery = \"go-back-n\""),
];

/// Attributes of connections in lessons: slow enough to be watched.
pub const TERMS: Terms = Terms {
    mtu: Mtu::Mtu1024,
    // 655.36 ms.
    min_rnr_timer: 0,
    // 1.07 s.
    timeout: 18,
    retry_count: 7,
    // Forever.
    rnr_retry: 7,
};

/// One of the two programs of a lesson.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The program that acts first.
    First,
    /// The other.
    Second,
}

use Side::{First, Second};

/// An action or observation of a program.
#[derive(Clone, Debug, Serialize)]
pub struct Said {
    /// Name of the program.
    who: &'static str,
    /// Description.
    text: String,
}

/// The objects that a program has on its RNIC.
struct Objects {
    qps: Vec<Qp>,
    sends: Cq,
    receives: Cq,
    mr: Mr,
    srq: Option<Srq>,
}

/// A program and its guest.
struct Program {
    name: &'static str,
    vm: Vm,
    has: Option<Objects>,
}

/// What a lesson needs.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Whether to use the RNICs with go-back-N recovery.
    pub go_back_n: bool,
    /// Attributes of the connections.
    pub terms: Terms,
    /// Number of connections between the two programs.
    pub connections: usize,
    /// Whether the second program takes its receives from a shared receive queue.
    pub shared: bool,
    /// Whether the region of the second program is paged on demand.
    pub on_demand: bool,
}

impl Default for Wish {
    /// Returns the needs of a lesson with one connection.
    fn default() -> Self {
        Self {
            go_back_n: false,
            terms: TERMS,
            connections: 1,
            shared: false,
            on_demand: false,
        }
    }
}

/// The lab.
pub struct Lab {
    programs: Vec<Program>,
    control: PathBuf,
    /// Index of the first of the lesson's two programs.
    first: usize,
    /// Index of the watched connection.
    watched: usize,
    /// Length of the last request in bytes.
    length: usize,
    said: Vec<Said>,
    /// Dropped after the guests.
    _daemon: Daemon,
}

impl Program {
    fn objects(&mut self) -> Result<(&mut Vm, &mut Objects)> {
        let has = self.has.as_mut().context("the lesson has not begun")?;
        Ok((&mut self.vm, has))
    }

    /// Destroys its objects.
    fn clear(&mut self) -> Result<()> {
        let Some(mut has) = self.has.take() else {
            return Ok(());
        };
        for qp in has.qps {
            qp.destroy(&mut self.vm, &mut has.sends, &mut has.receives)?;
        }
        has.sends.destroy(&mut self.vm)?;
        has.receives.destroy(&mut self.vm)?;
        if let Some(srq) = has.srq {
            srq.destroy(&mut self.vm)?;
        }
        has.mr.deregister(&mut self.vm)?;
        while self.vm.async_event(Duration::ZERO)?.is_some() {}
        Ok(())
    }

    fn prepare(&mut self, wish: &Wish, is_second: bool) -> Result<()> {
        let vm = &mut self.vm;
        let mut sends = Cq::new(vm, 4 * ENTRIES, 0)?;
        let mut receives = Cq::new(vm, 4 * ENTRIES, 1)?;
        let area = vm.allocate(REGION)?;
        let mr = if wish.on_demand && is_second {
            Mr::on_demand(vm, area)?
        } else {
            Mr::register(vm, area)?
        };
        let srq = if wish.shared && is_second {
            Some(Srq::new(vm, ENTRIES)?)
        } else {
            None
        };
        let mut qps = Vec::new();
        for _ in 0..wish.connections {
            let qp = Qp::with_srq(vm, ENTRIES, &mut sends, &mut receives, srq.as_ref())?;
            qps.push(qp);
        }
        self.has = Some(Objects {
            qps,
            sends,
            receives,
            mr,
            srq,
        });
        Ok(())
    }
}

impl Lab {
    /// Starts a lab with that vrnicd.
    pub fn start(vrnicd: &Path) -> Result<Self> {
        let devices = RNICS.map(|(name, more)| (name.to_owned(), more));
        let mut daemon = Daemon::configured(vrnicd, Fabric::Roce, &devices, "faults = true")?;
        let mut programs = Vec::new();
        for (number, (name, _)) in RNICS.iter().enumerate() {
            programs.push(Program {
                name,
                vm: Vm::start(daemon.connect(number)?, number, RAM)?,
                has: None,
            });
        }
        Ok(Self {
            programs,
            control: daemon.control(),
            first: 0,
            watched: 0,
            length: MOST_SHOWN,
            said: Vec::new(),
            _daemon: daemon,
        })
    }

    /// Returns the control socket of the daemon.
    pub fn control(&self) -> &Path {
        &self.control
    }

    fn program(&mut self, side: Side) -> &mut Program {
        let at = self.first + usize::from(side == Second);
        &mut self.programs[at]
    }

    fn ask<T>(&mut self, question: impl FnOnce(&mut Client) -> Result<T>) -> Result<T> {
        question(&mut Client::connect(&self.control)?)
    }

    /// Destroys the objects of the previous lesson, and connects two programs.
    pub fn connect(&mut self, wish: &Wish) -> Result<()> {
        for program in &mut self.programs {
            let name = program.name;
            program.clear().with_context(|| format!("program {name}"))?;
        }
        for (name, _) in RNICS {
            self.ask(|client| client.clear_faults(name, None))?;
        }
        self.first = if wish.go_back_n { 2 } else { 0 };
        self.watched = 0;
        self.length = MOST_SHOWN;
        self.program(First).prepare(wish, false)?;
        self.program(Second).prepare(wish, true)?;
        let [a, b] = [self.first, self.first + 1];
        let gids = [self.programs[a].vm.gid(), self.programs[b].vm.gid()];
        let numbers = |program: &mut Program| -> Result<Vec<u32>> {
            Ok(program.objects()?.1.qps.iter().map(Qp::qpn).collect())
        };
        let peers = [
            numbers(&mut self.programs[b])?,
            numbers(&mut self.programs[a])?,
        ];
        for (at, (place, gid)) in [(a, gids[1]), (b, gids[0])].into_iter().enumerate() {
            let (vm, has) = self.programs[place].objects()?;
            for (qp, peer) in has.qps.iter_mut().zip(&peers[at]) {
                qp.connect_on(vm, *peer, &gid, &wish.terms)?;
            }
        }
        self.keep_traced()
    }

    /// Requests traces, so that the devices trace their steps. The page may do so too late for the first steps.
    pub fn keep_traced(&mut self) -> Result<()> {
        self.ask(|client| {
            for (name, _) in RNICS {
                client.trace(name, u64::MAX)?;
            }
            Ok(())
        })
    }

    /// Returns the watched connection, as the timeline names it.
    pub fn connection(&mut self) -> Result<String> {
        let watched = self.watched;
        let mut end = |side| -> Result<String> {
            let program = self.program(side);
            let name = program.name;
            Ok(format!(
                "{name} QP {}",
                program.objects()?.1.qps[watched].qpn()
            ))
        };
        Ok(format!("{} – {}", end(First)?, end(Second)?))
    }

    /// Selects another connection of the lesson, which the programs use and the page watches from now on.
    pub fn watch(&mut self, connection: usize) {
        self.watched = connection;
    }

    /// Returns what was said since the last call.
    pub fn take_said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.said)
    }

    /// Lets a program say something.
    pub fn say(&mut self, side: Side, text: impl Into<String>) {
        let who = self.program(side).name;
        self.said.push(Said {
            who,
            text: text.into(),
        });
    }

    /// Writes a text to a program's memory, to be sent or read.
    pub fn put(&mut self, side: Side, text: &str) -> Result<()> {
        let (_, has) = self.program(side).objects()?;
        has.mr.area.memory.write_bytes(0, text.as_bytes());
        Ok(())
    }

    /// Says what is at an offset in a program's memory: as much as the last request transferred, up to the first zero.
    pub fn show(&mut self, side: Side, offset: usize) -> Result<()> {
        let end = offset + self.length.min(MOST_SHOWN);
        let (_, has) = self.program(side).objects()?;
        let bytes = (offset..end).map(|at| has.mr.area.byte(at));
        let text: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        let text = String::from_utf8_lossy(&text).into_owned();
        let what = if text.is_empty() {
            "only zeros".to_owned()
        } else {
            format!("“{text}”")
        };
        self.say(side, format!("finds in its memory: {what}"));
        Ok(())
    }

    /// Posts a receive of the second program.
    pub fn receive(&mut self) -> Result<()> {
        let watched = self.watched;
        let (vm, has) = self.program(Second).objects()?;
        let element = has.mr.sge(INBOX, RECEIVE);
        if let Some(srq) = &mut has.srq {
            srq.post(1, element)?;
        } else {
            has.qps[watched].push_receive(1, element)?;
            has.qps[watched].offer(vm)?;
        }
        let to = if has.srq.is_some() {
            "its SRQ"
        } else {
            "its QP"
        };
        self.say(
            Second,
            format!("posts a receive of {RECEIVE} bytes to {to}"),
        );
        Ok(())
    }

    /// Posts a request of the first program for the first `length` bytes of its memory.
    pub fn post(&mut self, opcode: SendOpcode, target: Target<'_>, length: usize) -> Result<()> {
        self.length = length;
        let watched = self.watched;
        let (vm, has) = self.program(First).objects()?;
        let mut request = request(opcode, 1, target);
        request.immediate = 42;
        let element = has.mr.sge(0, length);
        has.qps[watched].post(vm, &request, element)?;
        self.say(
            First,
            format!("posts a request: {}, {length} bytes", opcode.name()),
        );
        Ok(())
    }

    /// Returns the address of an offset in the second program's memory, and its key.
    pub fn remote(&mut self, offset: usize) -> Result<(u64, u32)> {
        let (_, has) = self.program(Second).objects()?;
        Ok((has.mr.area.address + offset as u64, has.mr.key))
    }

    /// Returns the same as the target of a request.
    pub fn target(&mut self, offset: usize) -> Result<Target<'static>> {
        let (address, rkey) = self.remote(offset)?;
        Ok(Target::Memory { address, rkey })
    }

    fn cq(&mut self, side: Side) -> Result<&mut Cq> {
        let (_, has) = self.program(side).objects()?;
        Ok(match side {
            First => &mut has.sends,
            Second => &mut has.receives,
        })
    }

    /// Waits for a completion of a program and says what it contains. It is a completion of a request for the first
    /// program, and of a receive for the second.
    pub fn completion(&mut self, side: Side) -> Result<Status> {
        let cqe = self.cq(side)?.wait_any()?;
        self.say(side, format!("polls its CQ: {}", tell(&cqe)));
        Ok(Status::try_from(cqe.status).unwrap_or(Status::General))
    }

    /// Checks that there is no completion for a program.
    pub fn no_completion(&mut self, side: Side) -> Result<()> {
        if let Some(cqe) = self.cq(side)?.poll() {
            bail!("there is a completion already: {}", tell(&cqe));
        }
        self.say(side, "polls its CQ: nothing");
        Ok(())
    }

    /// Waits for an asynchronous event of a program and says what it is.
    pub fn event(&mut self, side: Side) -> Result<AsyncEvent> {
        let event = self.program(side).vm.async_event(PATIENCE)?;
        let event = event.context("got no event")?;
        let name = EventType::try_from(event.event_type.get()).map_or("?", EventType::name);
        let said = match EventType::try_from(event.event_type.get()) {
            Ok(EventType::PageFault) => "the driver gets an event: page fault".to_owned(),
            _ => format!("gets an asynchronous event: {name}"),
        };
        self.say(side, said);
        Ok(event)
    }

    /// Checks that there is no asynchronous event for a program.
    pub fn no_event(&mut self, side: Side) -> Result<()> {
        if let Some(event) = self.program(side).vm.async_event(Duration::ZERO)? {
            bail!("there is an event already: {event:?}");
        }
        self.say(side, "has no asynchronous event");
        Ok(())
    }

    /// Arms a fault on the first program's RNIC.
    pub fn fault(&mut self, fault: &str) -> Result<()> {
        let name = self.program(First).name;
        self.ask(|client| client.add_fault(name, fault))?;
        self.say(First, format!("(a fault is armed at its RNIC: {fault})"));
        Ok(())
    }

    /// Sets the limit of the second program's shared receive queue.
    pub fn set_limit(&mut self, limit: u32) -> Result<()> {
        let (vm, has) = self.program(Second).objects()?;
        let srq = has.srq.as_ref().context("there is no SRQ")?;
        srq.set_limit(vm, limit)?;
        self.say(Second, format!("sets the limit of its SRQ to {limit}"));
        Ok(())
    }

    /// Says how full the shared receive queue is.
    pub fn show_srq(&mut self) -> Result<()> {
        let program = self.program(Second);
        let name = program.name;
        let (_, has) = program.objects()?;
        let number = has.srq.as_ref().context("there is no SRQ")?.srqn();
        let srqs = self.ask(|client| client.srqs(name))?;
        let srq = srqs.iter().find(|srq| srq.srqn == number);
        let srq = srq.context("the RNIC does not know the SRQ")?;
        let left = srq.posted.unwrap_or(0);
        let limit = match srq.limit {
            0 => "no limit is armed".to_owned(),
            limit => format!("the limit is {limit}"),
        };
        self.say(Second, format!("has an SRQ with {left} receives; {limit}"));
        Ok(())
    }

    /// Handles a page fault as the driver of the second program: takes the fault and gives the RNIC the pages.
    pub fn bring_pages_in(&mut self) -> Result<()> {
        let (vm, has) = self.program(Second).objects()?;
        let fault = vm.take_page_fault(has.mr.key)?;
        let (first, count) = (fault.first_page.get(), fault.page_count.get());
        if count == 0 {
            bail!("the RNIC waits for no page");
        }
        vm.map_pages(&has.mr.area, has.mr.key, first..first + count)?;
        self.say(
            Second,
            format!("the driver gives the RNIC {count} page(s), from page {first} on"),
        );
        Ok(())
    }

    /// Takes the second program's pages back, as its kernel.
    pub fn take_pages_back(&mut self) -> Result<()> {
        let (vm, has) = self.program(Second).objects()?;
        let pages = (REGION / 4096) as u32;
        vm.unmap_pages(has.mr.key, 0..pages)?;
        self.say(Second, "the kernel takes all pages of the region back");
        Ok(())
    }
}

/// Describes a completion. If it reports an error, only the status is valid.
fn tell(cqe: &Cqe) -> String {
    let status = Status::try_from(cqe.status).map_or("?", Status::name);
    if cqe.status != Status::Success.raw() {
        return status.to_owned();
    }
    let opcode = Opcode::try_from(cqe.opcode).map_or("?", Opcode::name);
    let received = cqe.opcode & Opcode::Receive.raw() != 0;
    let bytes = if received {
        format!(", {} bytes", cqe.byte_length.get())
    } else {
        String::new()
    };
    let immediate = match cqe.flags & flags::IMMEDIATE {
        0 => String::new(),
        _ => format!(", immediate {}", cqe.immediate.get()),
    };
    format!("{opcode}, {status}{bytes}{immediate}")
}
