// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Lessons about something missing: a packet or a page.

use anyhow::{Result, ensure};
use vrnic_wire::event::EventType;
use vrnic_wire::work::SendOpcode;

use super::lab::Side::{First, Second};
use super::lab::{Lab, Wish};
use super::{Lesson, Step};

/// Length of eight packets in bytes.
const EIGHT: usize = 8 << 10;

/// Performs a WRITE of eight packets.
fn write_eight(lab: &mut Lab) -> Result<()> {
    let target = lab.target(0)?;
    lab.post(SendOpcode::Write, target, EIGHT)?;
    lab.completion(First)?;
    Ok(())
}

fn write(lab: &mut Lab, text: &str) -> Result<()> {
    let target = lab.target(0)?;
    lab.put(First, text)?;
    lab.post(SendOpcode::Write, target, text.len())
}

/// Waits for a page fault of the second RNIC.
fn faults(lab: &mut Lab) -> Result<()> {
    let event = lab.event(Second)?;
    let kind = EventType::try_from(event.event_type.get());
    ensure!(kind == Ok(EventType::PageFault), "{kind:?}");
    Ok(())
}

/// Lesson: a lost packet.
pub const LOSS: Lesson = Lesson {
    name: "loss",
    title: "A lost packet",
    about: &[
        "Networks lose packets. A reliable connection repairs that in hardware: each packet has a number (PSN), and \
         the receiver notices a gap. What happens then depends on the RNIC.",
        "The method of the standard is go-back-N: the receiver drops all packets after the gap, and the sender \
         resends everything from the gap on. RNICs c and d do only that. RNICs a and b do better, like many newer \
         ones: the receiver keeps packets that arrive early, and the sender resends only the missing ones.",
    ],
    steps: &[
        Step {
            button: "c writes 8 KiB to d",
            before: "With 1,024 bytes per packet, these are eight packets. No packet is lost yet.",
            calls: "c: ibv_post_send(qp, … IBV_WR_RDMA_WRITE, .length = 8192 …)",
            look: "The PSNs count up. Only the first packet has the rkey, and only the last one asks for an acknowledgement.",
            after: "Eight packets (First, Middle, Last), and one acknowledgement for all of them: an ACK of a PSN \
                    acknowledges everything before it, too.",
            run: write_eight,
        },
        Step {
            button: "The third packet gets lost: go-back-N",
            before: "A fault is armed at RNIC c: its third packet from now on does not arrive. Then c writes again.",
            calls: "vrnicctl fault add -d c drop type=rc opcode=request nth=3\nc: ibv_post_send(qp, … .length = 8192 …)",
            look: "The lost packet ends in a cross. Follow the PSNs from there: which packets leave twice?",
            after: "The fourth packet arrived where d expected the third. d dropped it, and answered NAK: PSN \
                    sequence error, with the PSN that it waits for. c went back to that packet, and resent everything \
                    from there on. So one lost packet cost several. The program noticed only a delay: its completion \
                    reports success.",
            run: |lab| {
                lab.fault("drop type=rc opcode=request nth=3")?;
                write_eight(lab)
            },
        },
        Step {
            button: "The same between a and b: selective recovery",
            before: "A new connection, between RNICs that keep packets that arrive early.",
            calls: "vrnicctl fault add -d a drop type=rc opcode=request nth=3\na: ibv_post_send(qp, … .length = 8192 …)",
            look: "Which packets leave twice now?",
            after: "b sent the same NAK, but it kept the packets after the gap. So a resent only the missing packet, \
                    and the next acknowledgement covers all. On a long and fast link, where thousands of packets are \
                    in flight, this is the difference between a hiccup and a standstill.",
            run: |lab| {
                lab.connect(&Wish::default())?;
                lab.fault("drop type=rc opcode=request nth=3")?;
                write_eight(lab)
            },
        },
        Step {
            button: "The last packet gets lost",
            before: "The receiver notices a gap when a later packet arrives. No packet follows the last one.",
            calls: "vrnicctl fault add -d a drop type=rc opcode=request nth=8\na: ibv_post_send(qp, … .length = 8192 …)",
            look: "There is no NAK. Which side notices the loss? Choose “To scale” to see how long nothing happens.",
            after: "b could not notice the loss, so it sent no NAK, and only a timer helps. The standard has the \
                    local ACK timeout, which was set to 1.07 s for this connection. When it expires, the sender tries \
                    again. After retry_cnt tries, it fails with IBV_WC_RETRY_EXC_ERR. vrnic waits less: it measures \
                    how long answers take, and probes when one is overdue.",
            run: |lab| {
                lab.fault("drop type=rc opcode=request nth=8")?;
                write_eight(lab)
            },
        },
    ],
    lesson: "Loss costs time, not data. How much time depends on how the loss is noticed (by a NAK within a round \
             trip, or by a timer), and on what is resent (everything from the gap on, or only what is missing).",
    begin: |lab| {
        lab.connect(&Wish {
            go_back_n: true,
            ..Wish::default()
        })
    },
};

/// Lesson: on-demand paging.
pub const ODP: Lesson = Lesson {
    name: "odp",
    title: "Memory that is not present (ODP)",
    about: &[
        "Registering memory pins it: the kernel may not move or swap its pages, because the RNIC accesses them \
         without asking. That costs memory, and time to register. With on-demand paging (ODP), nothing is pinned. The \
         RNIC asks the driver for a page when it needs the page, like a processor at a page fault.",
        "b has registered an on-demand region of four pages. Its RNIC has none of them yet. Usually the driver \
         answers within microseconds. Here the driver of b waits until you press the button, so that you can see what \
         the RNICs do meanwhile.",
    ],
    steps: &[
        Step {
            button: "a writes into b's memory",
            before: "An RDMA WRITE with the right key. a cannot know that the page is not present.",
            calls: "b: ibv_reg_mr(pd, …, IBV_ACCESS_ON_DEMAND | …), earlier\na: ibv_post_send(qp, … IBV_WR_RDMA_WRITE …)",
            look: "What does b's RNIC answer? And what does it tell its own side?",
            after: "b's RNIC found no page. It raised a page fault, an event for the driver and not for the program, \
                    and answered RNR NAK. That is also the answer if no receive is posted, and it means: try again \
                    later. a's RNIC does, every 655 ms.",
            run: |lab| {
                write(lab, "Written on demand")?;
                faults(lab)?;
                lab.no_completion(First)
            },
        },
        Step {
            button: "The driver brings the page in",
            before: "The driver asks the RNIC which page it needs, gets the page from the kernel, and tells the RNIC \
                     the page's address.",
            calls: "driver of b: TakePageFault, then MapPages",
            look: "The next try succeeds.",
            after: "The write succeeded, and a got its completion. The programs noticed only the delay. With ODP, the \
                    first access to a page can cost hundreds of microseconds, or a whole RNR timer.",
            run: |lab| {
                lab.bring_pages_in()?;
                lab.completion(First)?;
                lab.show(Second, 0)
            },
        },
        Step {
            button: "a writes to the same page again",
            before: "Is the second access cheaper?",
            calls: "a: ibv_post_send(qp, … IBV_WR_RDMA_WRITE …)",
            look: "Compare with the first time.",
            after: "No page fault and no NAK: the RNIC has the page now. Programs that cannot wait at the first \
                    access can request pages in advance, with ibv_advise_mr().",
            run: |lab| {
                write(lab, "Written at once")?;
                lab.completion(First)?;
                lab.no_event(Second)?;
                lab.show(Second, 0)
            },
        },
        Step {
            button: "The kernel takes the pages back, and a writes",
            before: "The kernel may need the memory for something else, or b's program unmaps it, or forks. Then the \
                     kernel first takes the pages away from the RNIC. This time, the driver answers page faults at \
                     once.",
            calls: "driver of b: UnmapPages\na: ibv_post_send(qp, … IBV_WR_RDMA_WRITE …)\ndriver of b: TakePageFault, MapPages",
            look: "It starts again: page fault, RNR NAK, and a later try.",
            after: "The driver answered at once, but a still had to wait for the RNR timer: it cannot know when the \
                    page is present. With ODP, keep min_rnr_timer short. Here it is long so that you can watch.",
            run: |lab| {
                lab.take_pages_back()?;
                write(lab, "Written again")?;
                faults(lab)?;
                lab.bring_pages_in()?;
                lab.completion(First)?;
                lab.show(Second, 0)
            },
        },
    ],
    lesson: "ODP avoids pinning, but costs a page fault at the first access. The peer sees RNR NAKs although no \
             receive is missing.",
    begin: |lab| {
        lab.connect(&Wish {
            on_demand: true,
            ..Wish::default()
        })
    },
};
