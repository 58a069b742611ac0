// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Lessons about receives.

use anyhow::{Result, ensure};
use vrnic::ring::send::Target;
use vrnic_native::queues::Terms;
use vrnic_wire::completion::Status;
use vrnic_wire::event::EventType;
use vrnic_wire::work::SendOpcode;

use super::lab::Side::{First, Second};
use super::lab::{INBOX, Lab, TERMS, Wish};
use super::{Lesson, Step};

fn send(lab: &mut Lab, text: &str) -> Result<()> {
    lab.put(First, text)?;
    lab.post(SendOpcode::Send, Target::Peer, text.len())
}

/// Lesson: a SEND without a receive, and its RNR NAK.
pub const SEND: Lesson = Lesson {
    name: "send",
    title: "A SEND needs a receive",
    about: &[
        "Programs a and b have one queue pair (QP) each. The two QPs form a reliable connection (RC). To send, a \
         program posts a request to its QP and continues with other work. Its RNIC executes the request, and then \
         writes a completion to a completion queue (CQ). The program polls the CQ.",
        "A SEND does not say where its bytes go. The receiving program does: it posts a receive, which names a \
         buffer, before the message arrives. What happens if it has not?",
    ],
    steps: &[
        Step {
            button: "b posts a receive, then a sends",
            before: "First, the normal case.",
            calls: "b: ibv_post_recv(qp, …)\na: ibv_post_send(qp, … IBV_WR_SEND …)\nboth: ibv_poll_cq(cq, …)",
            look: "Read the diagram from top to bottom. The outer lines are the programs, the inner ones are their \
                   RNICs. The states at the top show how the programs connected their QPs: from RESET, the state of a \
                   new QP, to RTS, ready to send. Then follow the message from a's program to a's RNIC, over the \
                   network, and into b's receive. A CQE is an entry of the completion queue.",
            after: "One packet, SEND Only, carried the message. b's RNIC took the receive, put the bytes into its \
                    buffer, and acknowledged the packet. (b had posted the receive earlier. The dashed arrow shows \
                    when its RNIC took it: posting only writes to a queue in memory, which the RNIC reads when it \
                    needs a receive.) Both programs got a completion: a's says that its request is done, b's that its \
                    receive is used up. The PSN is the packet's number: the acknowledgement has the same one.",
            run: |lab| {
                lab.receive()?;
                send(lab, "Hello from a")?;
                lab.completion(First)?;
                lab.completion(Second)?;
                lab.show(Second, INBOX)
            },
        },
        Step {
            button: "a sends, but b has posted nothing",
            before: "The same SEND, but without a receive.",
            calls: "a: ibv_post_send(qp, … IBV_WR_SEND …)",
            look: "Wait a few seconds. The same packet leaves again and again: look at its PSN. Which answer does it get?",
            after: "b's RNIC has nowhere to put the message. It answers RNR NAK: receiver not ready. The NAK says \
                    when to try again, here in 655 ms. b's program chose that time when it connected (min_rnr_timer). \
                    a's RNIC sends the same packet again, and will do so forever, because a's program asked for that \
                    (rnr_retry = 7). Neither program notices. For a, the request is just not done yet.",
            run: |lab| {
                send(lab, "Are you there?")?;
                lab.no_completion(First)
            },
        },
        Step {
            button: "b posts a receive at last",
            before: "It is not too late.",
            calls: "b: ibv_post_recv(qp, …)",
            look: "The next try gets through.",
            after: "The message arrived late, but once and in order, and both completions report success. So RNR NAKs \
                    cost time, not data. If some messages of your program take hundreds of milliseconds, the receiver \
                    may post too few receives.",
            run: |lab| {
                lab.receive()?;
                lab.completion(First)?;
                lab.completion(Second)?;
                lab.show(Second, INBOX)
            },
        },
        Step {
            button: "Connect again with rnr_retry = 1, and send without a receive",
            before: "Most programs set a limit. This step makes a new connection, which allows one retry.",
            calls: "a: ibv_modify_qp(qp, … .rnr_retry = 1 …, IBV_QP_RNR_RETRY | …)\na: ibv_post_send(qp, … IBV_WR_SEND …), \
                    twice",
            look: "Look at the completions in red, and at the state of a's QP. Choose the red step: what do both ends \
                   report?",
            after: "After one retry, a's RNIC gave up. The request completed with IBV_WC_RNR_RETRY_EXC_ERR, and a's \
                    QP went from RTS (ready to send) to ERR. A QP in ERR executes nothing: the second request was \
                    flushed (IBV_WC_WR_FLUSH_ERR). When you debug, look for the first error of a QP. The flushes \
                    after it do not tell the reason. b's QP still works, and b's program knows nothing of the \
                    failure.",
            run: |lab| {
                let terms = Terms {
                    rnr_retry: 1,
                    ..TERMS
                };
                lab.connect(&Wish {
                    terms,
                    ..Wish::default()
                })?;
                send(lab, "Nobody will read this")?;
                send(lab, "Nor this")?;
                let first = lab.completion(First)?;
                let second = lab.completion(First)?;
                ensure!(
                    first == Status::RnrRetryExceeded && second == Status::Flushed,
                    "{first:?}, {second:?}"
                );
                Ok(())
            },
        },
    ],
    lesson: "Post receives before your peer sends, and keep enough of them posted. Without one, the sender first \
             waits, and then fails with IBV_WC_RNR_RETRY_EXC_ERR. Only the sender sees this error.",
    begin: |lab| lab.connect(&Wish::default()),
};

/// Lesson: a shared receive queue, and its limit event.
pub const SRQ: Lesson = Lesson {
    name: "srq",
    title: "Many connections share their receives",
    about: &[
        "A server with 1,000 connections that keeps 100 receives posted on each needs 100,000 buffers, and most of \
         them stay unused. With a shared receive queue (SRQ), all QPs take their receives from one queue: a QP that \
         gets a message takes the next receive.",
        "But a few busy peers can then use up all receives, and the first lesson showed what happens next. So the \
         RNIC can tell the program when the SRQ runs low. Here a has two connections to b, and both of b's QPs use \
         one SRQ.",
    ],
    steps: &[
        Step {
            button: "b posts four receives, and sets the limit to 3",
            before: "The limit is a number of receives. b asks for an event when fewer receives are left.",
            calls: "b: ibv_post_srq_recv(srq, …), four times\nb: ibv_modify_srq(srq, … .srq_limit = 3 …, IBV_SRQ_LIMIT)",
            look: "Nothing is new in the diagram: posting a receive only writes to a queue in b's memory.",
            after: "The SRQ has four receives, which belong to no QP yet. b's RNIC takes one when a message comes.",
            run: |lab| {
                for _ in 0..4 {
                    lab.receive()?;
                }
                lab.set_limit(3)?;
                lab.show_srq()
            },
        },
        Step {
            button: "a sends on the first connection",
            before: "A message like any other.",
            calls: "a: ibv_post_send(qp1, … IBV_WR_SEND …)",
            look: "Where does b's RNIC take the receive from? Choose the dashed arrow: how many are left, and what is the limit?",
            after: "“receive … of SRQ” in the diagram: three are left. That is not fewer than three, so there is no event.",
            run: |lab| {
                send(lab, "On the first connection")?;
                lab.completion(First)?;
                lab.completion(Second)?;
                lab.no_event(Second)?;
                lab.show_srq()
            },
        },
        Step {
            button: "a sends on the second connection",
            before: "The other QP of b, and the same SRQ. The diagram changes to this connection.",
            calls: "a: ibv_post_send(qp2, … IBV_WR_SEND …)",
            look: "Look for the event in the diagram, beside b's program.",
            after: "Two receives are left, fewer than three: the RNIC raised IBV_EVENT_SRQ_LIMIT_REACHED. It is an \
                    asynchronous event: b gets it from ibv_get_async_event(), not from a CQ. It comes once. The limit is \
                    disarmed now, so that a program that is slow to refill is not flooded.",
            run: |lab| {
                lab.watch(1);
                send(lab, "On the second connection")?;
                lab.completion(First)?;
                lab.completion(Second)?;
                let event = lab.event(Second)?;
                let kind = EventType::try_from(event.event_type.get());
                ensure!(kind == Ok(EventType::SrqLimitReached), "{kind:?}");
                lab.show_srq()
            },
        },
        Step {
            button: "b posts two more, and arms the limit again",
            before: "What a server does when it gets the event.",
            calls: "b: ibv_post_srq_recv(srq, …), twice\nb: ibv_modify_srq(srq, … .srq_limit = 3 …, IBV_SRQ_LIMIT)",
            look: "Check how many receives there are, and that no message had to wait.",
            after: "Four receives again. b refilled while two were left, so no sender got an RNR NAK. Choose the \
                    limit so that the receives that are left last until you have refilled the SRQ.",
            run: |lab| {
                lab.receive()?;
                lab.receive()?;
                lab.set_limit(3)?;
                lab.no_event(Second)?;
                lab.show_srq()
            },
        },
    ],
    lesson: "An SRQ lets many QPs share a few receives. Arm its limit, refill at the event, and arm it again: the event \
             comes once.",
    begin: |lab| {
        lab.connect(&Wish {
            connections: 2,
            shared: true,
            ..Wish::default()
        })
    },
};
