// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Lessons about the peer's memory.

use anyhow::{Result, ensure};
use vrnic::ring::send::Target;
use vrnic_wire::completion::Status;
use vrnic_wire::event::EventType;
use vrnic_wire::work::SendOpcode;

use super::lab::Side::{First, Second};
use super::lab::{Lab, Wish};
use super::{Lesson, Step};

/// Writes a text to the start of the second program's memory.
fn write(lab: &mut Lab, opcode: SendOpcode, text: &str) -> Result<()> {
    let target = lab.target(0)?;
    lab.put(First, text)?;
    lab.post(opcode, target, text.len())
}

/// Performs a WRITE that fails because of its remote memory.
fn refused(lab: &mut Lab, target: Target<'_>) -> Result<()> {
    lab.put(First, "This must not arrive")?;
    lab.post(SendOpcode::Write, target, 20)?;
    let status = lab.completion(First)?;
    ensure!(status == Status::RemoteAccess, "{status:?}");
    let event = lab.event(Second)?;
    let kind = EventType::try_from(event.event_type.get());
    ensure!(kind == Ok(EventType::QpAccessError), "{kind:?}");
    lab.show(Second, 0)
}

/// Lesson: a WRITE that the peer's program does not notice.
pub const WRITE: Lesson = Lesson {
    name: "write",
    title: "A WRITE that nobody sees",
    about: &[
        "An RDMA WRITE puts bytes straight into the memory of the peer, at an address that the writer chooses. The peer's \
         program posts nothing for it. It allowed it once, when it registered that memory: that gave it a remote key \
         (rkey), which it told a.",
        "So how does b's program know that something is there?",
    ],
    steps: &[
        Step {
            button: "a writes into b's memory",
            before: "a knows the address and the rkey.",
            calls: "a: ibv_post_send(qp, … IBV_WR_RDMA_WRITE, .remote_addr, .rkey …)\nb: nothing",
            look: "The line of b's program, on the right. Does anything reach it?",
            after: "The bytes are in b's memory, and b's program was told nothing: no receive was taken, no completion \
                    written, and b's processor did nothing. Only a has a completion. b finds the bytes if it happens to \
                    look there. Programs that do (they poll on a byte that is written last) save the most time.",
            run: |lab| {
                lab.show(Second, 0)?;
                write(lab, SendOpcode::Write, "a was here")?;
                lab.completion(First)?;
                lab.no_completion(Second)?;
                lab.show(Second, 0)
            },
        },
        Step {
            button: "a writes with immediate data",
            before: "If b is to be told, there is RDMA WRITE with immediate. It carries a number, 42 here, and needs a \
                     receive at b, which gets no bytes.",
            calls: "b: ibv_post_recv(qp, …)\na: ibv_post_send(qp, … IBV_WR_RDMA_WRITE_WITH_IMM …)",
            look: "Now there are arrows between b's RNIC and its program.",
            after: "The bytes went where a chose, as before. But the write took b's receive, and b's completion has the \
                    number: “a wrote, and it is about 42”. Without a receive it would have got an RNR NAK, like a SEND.",
            run: |lab| {
                lab.receive()?;
                write(
                    lab,
                    SendOpcode::WriteWithImmediate,
                    "a was here, and says so",
                )?;
                lab.completion(First)?;
                lab.completion(Second)?;
                lab.show(Second, 0)
            },
        },
        Step {
            button: "a reads from b's memory",
            before: "The other direction: an RDMA READ fetches bytes. b writes something there first, as any program does.",
            calls: "b: strcpy(buffer, …)\na: ibv_post_send(qp, … IBV_WR_RDMA_READ …)",
            look: "There are two packets, and no acknowledgement.",
            after: "b's RNIC answered the READ Request with the bytes: the response is the acknowledgement. Again b's \
                    program had no part in it. A READ needs a whole round trip before a has the bytes. A WRITE is on its \
                    way at once.",
            run: |lab| {
                lab.put(Second, "b wrote this itself")?;
                let target = lab.target(0)?;
                lab.post(SendOpcode::Read, target, 19)?;
                lab.completion(First)?;
                lab.no_completion(Second)?;
                lab.show(First, 0)
            },
        },
    ],
    lesson: "WRITE and READ do not involve the peer's program: that makes them fast, and it means that nobody tells the \
             peer. Poll memory, write with immediate data, or send a message behind it.",
    begin: |lab| lab.connect(&Wish::default()),
};

/// Lesson: a WRITE with a wrong key.
pub const RKEY: Lesson = Lesson {
    name: "rkey",
    title: "A wrong rkey",
    about: &[
        "If anybody can write into b's memory, what keeps them from writing anywhere? b's RNIC does. It checks each packet: \
         is there a memory region (MR) with that rkey, in the protection domain of this QP, does it allow this kind of \
         access, and do all bytes lie inside?",
        "“Remote access error” is one of the most common errors of RDMA programs, and a's side cannot know the reason.",
    ],
    steps: &[
        Step {
            button: "a writes with the right key",
            before: "To compare with.",
            calls: "a: ibv_post_send(qp, … IBV_WR_RDMA_WRITE, .rkey = mr->rkey …)",
            look: "The packet in the diagram carries the rkey. Choose it to see all fields of its headers.",
            after: "The key was right. It is a random number, which the RNIC drew when b registered its memory.",
            run: |lab| {
                write(lab, SendOpcode::Write, "The right key")?;
                lab.completion(First)?;
                lab.show(Second, 0)
            },
        },
        Step {
            button: "a writes with a wrong key",
            before: "One bit of the key is changed.",
            calls: "a: ibv_post_send(qp, … IBV_WR_RDMA_WRITE, .rkey = mr->rkey ^ 1 …)",
            look: "The NAK in red. Choose it: b's RNIC says below which check failed.",
            after: "b's RNIC answered NAK: remote access error, and nothing was written. a's request completed with \
                    IBV_WC_REM_ACCESS_ERR. b did nothing wrong, and still its QP went to ERR, too, with the event \
                    IBV_EVENT_QP_ACCESS_ERR: after such an error nobody trusts the connection. a knows that it was \
                    refused, and not why. Only b's side can say “no memory region has the remote key”. Below the diagram, \
                    it shows the region that it has, whose key differs in the last digit.",
            run: |lab| {
                let (address, rkey) = lab.remote(0)?;
                let rkey = rkey ^ 1;
                refused(lab, Target::Memory { address, rkey })
            },
        },
        Step {
            button: "a tries again, with the right key",
            before: "Does that help?",
            calls: "a: ibv_post_send(qp, … IBV_WR_RDMA_WRITE, .rkey = mr->rkey …)",
            look: "Does any packet leave?",
            after: "No packet left: the QP is in ERR, so the request was flushed. Both sides have to take their QP to \
                    RESET, and connect again. ",
            run: |lab| {
                write(lab, SendOpcode::Write, "The right key again")?;
                let status = lab.completion(First)?;
                ensure!(status == Status::Flushed, "{status:?}");
                lab.show(Second, 0)
            },
        },
        Step {
            button: "Connect again, and write past the end",
            before: "b's region has 16 KiB. This begins 10 bytes before its end, with the right key, and is 20 bytes long.",
            calls: "a: ibv_post_send(qp, … .remote_addr = end - 10, .rkey = mr->rkey …)",
            look: "The same NAK, the same status. Choose the NAK: what is different?",
            after: "To a it looks the same. b's side says “remote access exceeds its memory region”, and shows where \
                    that region begins and how long it is. No byte was written, not even the ten that would have fitted. When you debug such an error, ask the side that sent the \
                    NAK. With vrnic, vrnicctl explain does that.",
            run: |lab| {
                lab.connect(&Wish::default())?;
                let target = lab.target(16 * 1024 - 10)?;
                refused(lab, target)
            },
        },
    ],
    lesson: "The RNIC that owns the memory checks each access. A wrong key, a wrong length and a missing right all look the \
             same to the requester, IBV_WC_REM_ACCESS_ERR, and they end the connection on both sides.",
    begin: |lab| lab.connect(&Wish::default()),
};
