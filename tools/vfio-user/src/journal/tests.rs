// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A daemon killed at every step of every message, and its successor.

use super::*;

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::message::{DmaMap, DmaUnmap, Header, IrqSet, MAX_DATA, RegionAccess, command};
use crate::stop::Stop;
use crate::stream::MessageStream;
use crate::{Device, Disconnect, serve, take_over};

/// A device that reads as all ones and accepts everything else.
struct Gone;

impl Device for Gone {
    fn info(&self) -> (u32, u32, u32) {
        (0, 0, 0)
    }

    fn region(&self, _index: u32) -> Result<(u32, u64), Errno> {
        Ok((0, u64::MAX))
    }

    fn irq(&self, _index: u32) -> Result<(u32, u32), Errno> {
        Ok((0, 0))
    }

    fn set_irqs(&mut self, _set: &IrqSet, _data: &[u8], _fds: Vec<OwnedFd>) -> Result<(), Errno> {
        Ok(())
    }

    fn read(&mut self, _region: u32, _offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        data.fill(0xff);
        Ok(())
    }

    fn write(&mut self, _region: u32, _offset: u64, _data: &[u8]) -> Result<(), Errno> {
        Ok(())
    }

    fn dma_map(&mut self, _map: &DmaMap, _fd: Option<OwnedFd>) -> Result<(), Errno> {
        Ok(())
    }

    fn dma_unmap(&mut self, _unmap: &DmaUnmap) -> Result<(), Errno> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}

thread_local! {
    /// Number of steps that this thread takes before it is killed.
    static STEPS: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// Payload of the panic that unwinds a killed thread.
struct Killed;

pub(super) fn killed_here() {
    STEPS.with(|steps| match steps.get() {
        u32::MAX => {}
        0 => {
            // Only once: code that runs during unwinding takes no steps.
            steps.set(u32::MAX);
            resume_unwind(Box::new(Killed));
        }
        left => steps.set(left - 1),
    });
}

/// Runs `work` as a daemon that is killed after `steps` steps. Returns `None` if it was killed.
fn killed_after<R>(steps: u32, work: impl FnOnce() -> R) -> Option<R> {
    STEPS.set(steps);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    STEPS.set(u32::MAX);
    match outcome {
        Ok(result) => Some(result),
        Err(panic) if panic.is::<Killed>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// One message of a VMM.
#[derive(Clone, Debug)]
enum Sent {
    Read(u32),
    Write(u32),
    Posted(u32),
    Nonsense,
}

fn bytes_of(id: u16, message: &Sent) -> Vec<u8> {
    let (command, count, data, posted) = match *message {
        Sent::Read(count) => (command::REGION_READ, count, 0, false),
        Sent::Write(count) => (command::REGION_WRITE, count, count, false),
        Sent::Posted(count) => (command::REGION_WRITE, count, count, true),
        Sent::Nonsense => (99, 0, 0, false),
    };
    let mut body = RegionAccess {
        offset: 0x40,
        region: 4,
        count,
    }
    .as_bytes()
    .to_vec();
    body.extend((0..data).map(|byte| byte as u8));
    let header = Header::request(id, command, body.len(), posted);
    [header.as_bytes(), &body].concat()
}

/// Returns the ids of messages that want a reply, in order.
fn wanted(messages: &[Sent]) -> Vec<u16> {
    (0u16..)
        .zip(messages)
        .filter(|(_, message)| !matches!(message, Sent::Posted(_)))
        .map(|(id, _)| id)
        .collect()
}

/// Returns the ids of the replies in `bytes`, and checks that each is complete.
fn answered(mut bytes: &[u8], messages: &[Sent]) -> Vec<u16> {
    let mut ids = Vec::new();
    while !bytes.is_empty() {
        let (header, _) = Header::read_from_prefix(bytes).unwrap();
        assert!(!header.is_command(), "{header:?}");
        let length = match &messages[usize::from(header.id)] {
            Sent::Read(count) => 32 + *count as usize,
            Sent::Write(_) => 32,
            Sent::Nonsense => 16,
            Sent::Posted(_) => panic!("a posted write was answered"),
        };
        assert_eq!(header.size as usize, length);
        let body = &bytes[16..length];
        assert!(body.iter().skip(16).all(|byte| *byte == 0xff), "torn reply");
        ids.push(header.id);
        bytes = &bytes[length..];
    }
    ids
}

/// A VMM sends `messages` in pieces of `piece` bytes, a daemon serves it and is killed after `steps` steps, and a
/// successor continues. Returns whether the daemon was killed at all.
fn survives(messages: &[Sent], piece: usize, steps: u32) -> bool {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let successors = ours.try_clone().unwrap();
    let (journal, fd) = Journal::new().unwrap();
    let bytes: Vec<u8> = (0..)
        .zip(messages)
        .flat_map(|(id, message)| bytes_of(id, message))
        .collect();
    let mut reader = theirs.try_clone().unwrap();
    let (mut answers, mut killed) = (Vec::new(), false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for piece in bytes.chunks(piece) {
                (&theirs).write_all(piece).unwrap();
            }
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let server = scope.spawn(move || {
            let stop = Arc::new(Stop::new().unwrap());
            let stream = MessageStream::new(ours, stop.clone(), journal);
            let ended = killed_after(steps, || take_over(stream, &mut Gone));
            if ended.is_none() {
                let journal = Journal::open(&fd).unwrap();
                let stream = MessageStream::resume(successors, stop, journal).unwrap();
                let end = take_over(stream, &mut Gone);
                assert!(matches!(end, Disconnect::Closed), "{end:?}");
            }
            ended.is_none()
        });
        reader.read_to_end(&mut answers).unwrap();
        killed = server.join().unwrap();
    });
    assert_eq!(
        answered(&answers, messages),
        wanted(messages),
        "killed after {steps} steps, pieces of {piece} bytes"
    );
    killed
}

/// Kills at every step until some in a row lie beyond the end. The end is not always at the same step, because it
/// depends on how many bytes the socket holds when it is read. Returns the number of steps.
fn survives_every_step(messages: &[Sent], piece: usize) -> u32 {
    let (mut steps, mut behind) = (0, 0);
    while behind < 10 {
        behind = if survives(messages, piece, steps) {
            0
        } else {
            behind + 1
        };
        steps += 1;
    }
    steps - behind
}

#[test]
fn every_request_is_answered_once_wherever_the_daemon_is_killed() {
    let messages = [
        Sent::Posted(4),
        Sent::Read(1),
        Sent::Posted(4),
        Sent::Posted(4),
        Sent::Write(4),
        Sent::Nonsense,
        Sent::Read(4),
        Sent::Posted(2),
    ];
    let whole = survives_every_step(&messages, usize::MAX);
    assert!(whole > 30, "there are steps to be killed at: {whole}");
    survives_every_step(&messages, 1);
    survives_every_step(&messages, 37);
}

#[test]
fn replies_and_requests_longer_than_the_socket_takes_are_no_exception() {
    let most = MAX_DATA as u32;
    // More than the ring holds, and more replies than fit the socket.
    let messages: Vec<_> = (0..12)
        .map(|index| match index % 3 {
            0 => Sent::Write(most - index),
            1 => Sent::Posted(most - index),
            _ => Sent::Read(most - index),
        })
        .collect();
    survives_every_step(&messages, 50_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_traffic_survives_a_kill_at_a_random_step(
        messages in proptest::collection::vec(
            prop_oneof![
                1 => (1u32..9).prop_map(Sent::Read),
                1 => (1u32..9).prop_map(Sent::Write),
                4 => (1u32..9).prop_map(Sent::Posted),
                1 => (1u32..30_000).prop_map(Sent::Read),
                1 => (1u32..30_000).prop_map(Sent::Posted),
                1 => Just(Sent::Nonsense),
            ],
            1..60,
        ),
        piece in prop_oneof![1usize..100, 1000usize..100_000],
        steps in 0u32..600,
    ) {
        survives(&messages, piece, steps);
    }
}

#[test]
fn the_totals_are_right_between_any_two_steps() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (journal, fd) = Journal::new().unwrap();
    let observer = Journal::open(&fd).unwrap();
    let mut total = 0;
    for round in 1..20u64 {
        for steps in 0.. {
            theirs
                .write_all(&vec![round as u8; round as usize])
                .unwrap();
            if killed_after(steps, || journal.receive(ours.as_fd())).is_some() {
                total += round;
                assert_eq!(observer.received(), total);
                journal.advance(total);
                break;
            }
            // Bytes that were not received are still in the socket, so the next round finds more.
            let taken = observer.received() - total;
            assert!(taken == 0 || taken == round, "{taken} of {round}");
            if taken == 0 {
                (&ours).read_exact(&mut vec![0; round as usize]).unwrap();
            }
            total += taken;
            journal.advance(total);
        }
    }
}

#[test]
fn a_page_of_another_size_is_no_journal() {
    let fd = memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, NOTES_LEN).unwrap();
    assert!(Journal::open(&fd).is_err());
}

#[test]
fn a_successor_negotiates_no_more() {
    // The first message of a connection that was never served: the VMM starts without the device, but gets a reply.
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let journal = Journal::new().unwrap().0;
    let request = Header::request(1, command::VERSION, 0, false);
    theirs.write_all(request.as_bytes()).unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    let stream = MessageStream::new(ours, Arc::new(Stop::new().unwrap()), journal);
    serve(stream, &mut Gone);
    let mut answer = [0; Header::LEN];
    theirs.read_exact(&mut answer).unwrap();
    let answer = Header::read_from_bytes(&answer).unwrap();
    assert_eq!((answer.id, answer.result()), (1, Err(Errno::INVAL)));
}
