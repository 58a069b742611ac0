// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! End-to-end flow control (IBTA volume 1, 9.7.7.2). Acknowledgements carry the number of posted receives, so that the
//! requester does not have to learn it from RNR NAKs.

use super::Qp;
use crate::{
    memory::Memory,
    segment::{Aeth, NO_CREDITS, Syndrome},
};
use serde::{Deserialize, Serialize};
use vrnic_wire::qp::{MAX_PSN, QpType};

/// Number of receives for each 5-bit credit count. The last count, [`NO_CREDITS`], has no number.
const CREDITS: [u32; NO_CREDITS as usize] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// Returns the largest credit count that promises at most this many receives.
fn encode(receives: u32) -> u8 {
    CREDITS.partition_point(|&credits| credits <= receives) as u8 - 1
}

/// Returns the number of receives that a credit count promises, or `None` if the peer does not count.
fn decode(count: u8) -> Option<u32> {
    CREDITS.get(usize::from(count)).copied()
}

/// The messages for which the peer has receives.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Credit {
    /// Number of the last of them, 24 bits; `None` until the peer has reported credits.
    limit: Option<u32>,
}

impl Credit {
    /// Notes the credits in the newest acknowledgement.
    pub(super) fn note(&mut self, aeth: Aeth) {
        if let Syndrome::Ack { credits } = aeth.syndrome {
            self.limit = decode(credits).map(|receives| aeth.msn.wrapping_add(receives) & MAX_PSN);
        }
    }

    /// Returns whether there is a receive for message `number`. The first message has number 1.
    pub(super) fn covers(self, number: u32) -> bool {
        // As with PSNs, a number is ahead if the distance is less than half of the range.
        self.limit
            .is_none_or(|limit| limit.wrapping_sub(number) & MAX_PSN <= MAX_PSN / 2)
    }
}

impl Qp {
    /// Returns a positive acknowledgement with the number of receives.
    pub(super) fn ack<M: Memory>(&self, msn: u32, memory: &M) -> Aeth {
        if self.created.srqn.is_some() || self.created.qp_type == QpType::XrcTarget {
            // Other queue pairs take receives from the same queue, so none can be promised.
            let syndrome = Syndrome::ACK;
            return Aeth { syndrome, msn };
        }
        // Count the receive of the current message as well, because the message counts.
        let taken = u32::from(self.receive.is_taken());
        Aeth {
            syndrome: Syndrome::Ack {
                credits: encode(self.created.rq.untaken(memory) + taken),
            },
            msn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_never_promise_too_much() {
        for receives in (0..100).chain([32767, 32768, 1 << 20]) {
            let promised = decode(encode(receives)).expect("a count");
            assert!(promised <= receives);
            assert!(receives > 32768 || 2 * promised >= receives, "{receives}");
        }
        assert_eq!(encode(u32::MAX), 30);
        assert_eq!(decode(NO_CREDITS), None);
    }

    #[test]
    fn limits_wrap_with_message_numbers() {
        let mut credit = Credit::default();
        assert!(credit.covers(7), "nothing is known");
        let ack = |credits, msn| Aeth {
            syndrome: Syndrome::Ack { credits },
            msn,
        };
        credit.note(ack(0, 7));
        assert!(credit.covers(7) && !credit.covers(8));
        credit.note(ack(5, MAX_PSN));
        assert!(credit.covers(MAX_PSN) && credit.covers(5) && !credit.covers(6));
        credit.note(Aeth {
            syndrome: Syndrome::RnrNak { timer: 3 },
            msn: 100,
        });
        assert!(!credit.covers(6), "only acknowledgements count");
        credit.note(ack(NO_CREDITS, 5));
        assert!(credit.covers(1000));
    }
}
