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
        "An RDMA WRITE puts bytes directly into the memory of the peer, at an address that the writer chooses. The \
         peer's program posts nothing for it. It only registered that memory once, got a remote key (rkey) for it, \
         and told a the key.",
        "How, then, does b's program know that data has arrived?",
    ],
    steps: &[
        Step {
            button: "a writes into b's memory",
            before: "a knows the address and the rkey.",
            calls: "a: ibv_post_send(qp, … IBV_WR_RDMA_WRITE, .remote_addr, .rkey …)\nb: nothing",
            look: "Look at the line of b's program, on the right. Does anything reach it?",
            after: "The bytes are in b's memory, but b's program got no notice: no receive was taken, no completion \
                    was written, and b's processor did nothing. Only a got a completion. b finds the bytes only if it \
                    looks there. Programs that do this (they poll the byte that is written last) have the lowest \
                    latency.",
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
            before: "To notify b, use RDMA WRITE with immediate. It carries a number, 42 here. It takes a receive at \
                     b, but writes no bytes to the receive's buffer.",
            calls: "b: ibv_post_recv(qp, …)\na: ibv_post_send(qp, … IBV_WR_RDMA_WRITE_WITH_IMM …)",
            look: "Now there are arrows between b's RNIC and its program.",
            after: "The bytes went where a chose, as before. But the write took b's receive, and b's completion has \
                    the number 42. Without a receive, the write would have got an RNR NAK, like a SEND.",
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
            before: "The other direction: an RDMA READ fetches bytes. First, b stores some bytes in its memory.",
            calls: "b: strcpy(buffer, …)\na: ibv_post_send(qp, … IBV_WR_RDMA_READ …)",
            look: "Two packets travel, and neither is an acknowledgement.",
            after: "b's RNIC answered the READ Request with the bytes: the response is the acknowledgement. Again b's \
                    program had no part in it. With a READ, a has the bytes only after a whole round trip. The bytes \
                    of a WRITE leave at once.",
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
    lesson: "WRITE and READ do not involve the peer's program. That makes them fast, but the peer gets no notice. To \
             notify it, let it poll memory, write with immediate data, or send a message after the WRITE.",
    begin: |lab| lab.connect(&Wish::default()),
};

/// Lesson: a WRITE with a wrong key.
pub const RKEY: Lesson = Lesson {
    name: "rkey",
    title: "A wrong rkey",
    about: &[
        "If peers can write into b's memory, what keeps them from writing anywhere? b's RNIC does. It checks each \
         packet: is there a memory region (MR) with that rkey, in the protection domain of this QP, does it allow \
         this kind of access, and do all bytes lie inside?",
        "“Remote access error” is one of the most common errors of RDMA programs, and a's side cannot know the reason.",
    ],
    steps: &[
        Step {
            button: "a writes with the right key",
            before: "For comparison.",
            calls: "a: ibv_post_send(qp, … IBV_WR_RDMA_WRITE, .rkey = mr->rkey …)",
            look: "The packet in the diagram carries the rkey. Choose it to see all fields of its headers.",
            after: "The key was right. It is a random number that the RNIC chose when b registered its memory.",
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
            look: "Choose the NAK, in red. Below the diagram, b's RNIC says which check failed.",
            after: "b's RNIC answered NAK: remote access error, and nothing was written. a's request completed with \
                    IBV_WC_REM_ACCESS_ERR. b did nothing wrong, but its QP also went to ERR, with the event \
                    IBV_EVENT_QP_ACCESS_ERR: such an error ends the connection on both sides. a knows that the write \
                    was refused, but not why. Only b's side can say “no memory region has the remote key”. Below the \
                    diagram, it shows the region that it has, whose key differs in the last digit.",
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
            before: "b's region has 16 KiB. This write has the right key and 20 bytes, and begins 10 bytes before the \
                     end of the region.",
            calls: "a: ibv_post_send(qp, … .remote_addr = end - 10, .rkey = mr->rkey …)",
            look: "The same NAK, the same status. Choose the NAK: what is different?",
            after: "To a it looks the same. b's side says “remote access exceeds its memory region”, and shows where \
                    that region begins and how long it is. No byte was written, not even the ten that would have fit. \
                    When you debug such an error, ask the side that sent the NAK. With vrnic, vrnicctl explain does \
                    that.",
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
