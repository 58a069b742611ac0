// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Impairments: a line that loses, duplicates, delays and reorders frames, controlled by a random seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::port::Member;

/// Impairments of frames on their way from other ports to a port. The same seed with the same frames at the same times
/// gives the same result.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Impairment {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Probability that a frame is lost, 0 to 1.
    pub loss: f64,
    /// Probability that a frame that is not lost is duplicated.
    pub duplicate: f64,
    /// Delay of every frame.
    pub delay: Duration,
    /// Probability that a frame is delayed further, so that later ones overtake it.
    pub reorder: f64,
    /// The further delay of such a frame, in addition to `delay`.
    pub reorder_delay: Duration,
}

impl Impairment {
    /// Returns whether there is no impairment.
    pub fn is_none(&self) -> bool {
        let Self {
            loss,
            duplicate,
            delay,
            reorder,
            ..
        } = *self;
        loss <= 0.0 && duplicate <= 0.0 && reorder <= 0.0 && delay.is_zero()
    }
}

/// A frame on the line. Ordered by time of arrival, then by order of departure.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Travelling {
    due: Duration,
    number: u64,
    pub member: Member,
    pub frame: Vec<u8>,
}

/// The line to a port.
#[derive(Debug)]
pub struct Line {
    state: Option<Box<State>>,
}

#[derive(Debug)]
struct State {
    impairment: Impairment,
    random: ChaCha8Rng,
    travelling: BinaryHeap<Reverse<Travelling>>,
    bytes: usize,
    number: u64,
}

impl Line {
    /// Creates a line with this impairment.
    pub fn new(impairment: &Impairment) -> Self {
        let state = (!impairment.is_none()).then(|| {
            Box::new(State {
                impairment: impairment.clone(),
                random: ChaCha8Rng::seed_from_u64(impairment.seed),
                travelling: BinaryHeap::new(),
                bytes: 0,
                number: 0,
            })
        });
        Self { state }
    }

    /// Returns how many copies of a frame that is sent now arrive: 0, 1 or 2. Without impairment, 1.
    pub fn copies(&mut self) -> u8 {
        let Some(state) = &mut self.state else {
            return 1;
        };
        // Always draws both numbers, so that changing one probability does not affect the outcome of the other.
        let (lost, twice) = (
            state.chance(state.impairment.loss),
            state.chance(state.impairment.duplicate),
        );
        match (lost, twice) {
            (true, _) => 0,
            (false, true) => 2,
            (false, false) => 1,
        }
    }

    /// Returns when a frame that is sent now arrives; `None` if at once.
    pub fn arrival(&mut self, now: Duration) -> Option<Duration> {
        let state = self.state.as_mut()?;
        let mut delay = state.impairment.delay;
        if state.chance(state.impairment.reorder) {
            delay += state.impairment.reorder_delay;
        }
        (!delay.is_zero()).then(|| now + delay)
    }

    /// Returns the numbers of frames and bytes on the line.
    pub fn load(&self) -> (usize, usize) {
        self.state
            .as_ref()
            .map_or((0, 0), |state| (state.travelling.len(), state.bytes))
    }

    /// Sends a frame that [arrives](Self::arrival) at `due`.
    pub fn send(&mut self, due: Duration, member: Member, frame: Vec<u8>) {
        if let Some(state) = &mut self.state {
            state.number += 1;
            state.bytes += frame.len();
            state.travelling.push(Reverse(Travelling {
                due,
                number: state.number,
                member,
                frame,
            }));
        }
    }

    /// Returns when the next frame arrives.
    pub fn next_arrival(&self) -> Option<Duration> {
        let Reverse(next) = self.state.as_ref()?.travelling.peek()?;
        Some(next.due)
    }

    /// Removes and returns the next frame, if it has arrived by `now`.
    pub fn arrived(&mut self, now: Duration) -> Option<Travelling> {
        if self.next_arrival()? > now {
            return None;
        }
        let state = self.state.as_mut()?;
        let Reverse(next) = state.travelling.pop()?;
        state.bytes -= next.frame.len();
        Some(next)
    }
}

impl State {
    /// Returns true with this probability.
    fn chance(&mut self, probability: f64) -> bool {
        // A double represents 53 bits exactly.
        #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
        let drawn = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        drawn < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lossy(seed: u64) -> Line {
        Line::new(&Impairment {
            seed,
            loss: 0.1,
            duplicate: 0.05,
            ..Impairment::default()
        })
    }

    #[test]
    fn probabilities_hold_and_seeds_repeat() {
        let run = |seed| {
            let mut line = lossy(seed);
            (0..100_000).map(|_| line.copies()).collect::<Vec<_>>()
        };
        let first = run(1);
        assert_eq!(first, run(1));
        assert_ne!(first, run(2));
        let count = |copies| {
            first
                .iter()
                .map(|&drawn| usize::from(drawn == copies))
                .sum::<usize>()
        };
        assert!((9_500..10_500).contains(&count(0)), "{}", count(0));
        assert!((4_100..4_900).contains(&count(2)), "{}", count(2));
    }

    #[test]
    fn a_good_line_does_nothing() {
        let mut line = Line::new(&Impairment::default());
        assert_eq!(line.copies(), 1);
        assert_eq!(line.arrival(Duration::ZERO), None);
        assert_eq!(line.next_arrival(), None);
    }

    #[test]
    fn frames_arrive_when_due_and_in_order_of_departure() {
        let ms = Duration::from_millis;
        let mut line = Line::new(&Impairment {
            delay: ms(10),
            reorder: 1.0,
            reorder_delay: ms(5),
            ..Impairment::default()
        });
        assert_eq!(line.arrival(ms(1)), Some(ms(16)));
        line.send(ms(16), Member::Netdev, vec![1]);
        line.send(ms(12), Member::Rnic, vec![2]);
        line.send(ms(16), Member::Netdev, vec![3]);
        assert_eq!(line.load(), (3, 3));
        assert_eq!(line.next_arrival(), Some(ms(12)));
        assert!(line.arrived(ms(11)).is_none());
        assert_eq!(line.arrived(ms(12)).unwrap().frame, [2]);
        assert!(line.arrived(ms(15)).is_none());
        assert_eq!(line.arrived(ms(20)).unwrap().frame, [1]);
        assert_eq!(line.arrived(ms(20)).unwrap().frame, [3]);
        assert_eq!((line.load(), line.next_arrival()), ((0, 0), None));
    }
}
