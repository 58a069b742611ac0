// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Explores the orders in which threads can pass units, letters, frames, messages and sleep to each other, with the
//! real modules `actor`, `atomic_set`, `attended`, `inbox`, `lane` and `roster`.

#![allow(dead_code, reason = "the modules have more than a model needs")]

use std::collections::BTreeSet;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use vrnic_switch::QueueLimits;

#[path = "../src/actor.rs"]
mod actor;
#[path = "../src/atomic_set.rs"]
mod atomic_set;
#[path = "../src/attended.rs"]
mod attended;
#[path = "../src/inbox.rs"]
mod inbox;
#[path = "../src/network/lane.rs"]
mod lane;
#[path = "../src/roster.rs"]
mod roster;

/// What the modules are made of here.
mod sync {
    pub use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
    pub use loom::sync::{Mutex, MutexGuard};
    pub use std::sync::{PoisonError, TryLockError};
}

/// The waker, whose own protocol has its own test. A sleep that nobody ends is a deadlock, which the model reports.
mod waker {
    use loom::sync::{Condvar, Mutex};

    #[derive(Default)]
    struct State {
        sleeping: bool,
        stopping: bool,
    }

    pub struct Waker {
        state: Mutex<State>,
        woken: Condvar,
    }

    impl Waker {
        pub fn new() -> std::io::Result<Self> {
            Ok(Self {
                state: Mutex::new(State::default()),
                woken: Condvar::new(),
            })
        }

        pub fn wake(&self) {
            self.state.lock().unwrap().sleeping = false;
            self.woken.notify_all();
        }

        pub fn stop(&self) {
            self.state.lock().unwrap().stopping = true;
            self.wake();
        }

        pub fn is_stopping(&self) -> bool {
            self.state.lock().unwrap().stopping
        }

        pub fn announce(&self) {
            self.state.lock().unwrap().sleeping = true;
        }

        pub fn cancel(&self) {
            self.state.lock().unwrap().sleeping = false;
        }

        pub fn sleep(&self, _: Option<std::time::Duration>) {
            let mut state = self.state.lock().unwrap();
            while state.sleeping && !state.stopping {
                state = self.woken.wait(state).unwrap();
            }
            state.sleeping = false;
        }
    }
}

use actor::{Actor, Held};
use atomic_set::AtomicSet;
use attended::Attended;
use inbox::{Blanks, Inbox, Latest, Unread};
use lane::{FrameBlanks, Lane};
use roster::{Retirement, Roster};
use waker::Waker;

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A letter. The model fails if a thread could read it before the sender has finished writing it.
struct Letter(UnsafeCell<u32>);

impl Letter {
    fn new(number: u32) -> Self {
        let letter = Self(UnsafeCell::new(0));
        // SAFETY: nobody else knows the letter.
        letter.0.with_mut(|own| unsafe { *own = number });
        letter
    }

    fn read(&self) -> u32 {
        // SAFETY: nobody writes to a letter that has been sent.
        self.0.with(|number| unsafe { *number })
    }
}

// SAFETY: only one thread at a time uses a letter, and the model checks that.
unsafe impl Send for Letter {}

/// A receiver, which has got these numbers.
type Receiver = Actor<Vec<u32>, Letter>;

/// Passes a number to a receiver as `Worker::pass` does.
fn pass(receiver: &Receiver, number: u32) {
    if let Some(mut got) = receiver.try_take()
        && !got.has_letters()
    {
        return got.push(number);
    }
    receiver.put(Letter::new(number), &mut Blanks::new());
}

/// Reads the letters of a receiver.
fn empty(got: &mut Held<'_, Vec<u32>, Letter>) {
    while let Some(letter) = got.take_letter() {
        got.push(letter.read());
    }
}

#[test]
fn a_receiver_gets_everything_in_the_order_in_which_it_was_sent() {
    explore(3, || {
        let sender: Arc<Actor<u32, ()>> = Arc::new(Actor::new(0));
        let receiver: Arc<Receiver> = Arc::new(Actor::new(Vec::new()));
        let workers = [(); 2].map(|()| {
            let (sender, receiver) = (sender.clone(), receiver.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    // Another worker drives the sender just now.
                    let Some(mut sent) = sender.try_take() else {
                        continue;
                    };
                    *sent += 1;
                    pass(&receiver, *sent);
                }
            })
        });
        // The receiver's home, which reads one letter in this turn.
        if let Some(mut got) = receiver.try_take()
            && let Some(letter) = got.take_letter()
        {
            got.push(letter.read());
        }
        for worker in workers {
            worker.join().unwrap();
        }
        let mut got = receiver.take();
        empty(&mut got);
        let sent = *sender.take();
        assert!((2..=4).contains(&sent));
        assert_eq!(*got, (1..=sent).collect::<Vec<_>>());
    });
}

#[test]
fn an_inbox_loses_nothing_and_keeps_the_letters_of_each_sender_in_order() {
    explore(3, || {
        let inbox: Arc<Inbox<Letter>> = Arc::new(Inbox::new());
        let senders = [10, 20].map(|first| {
            let inbox = inbox.clone();
            thread::spawn(move || {
                let mut blanks = Blanks::new();
                inbox.put(Letter::new(first), &mut blanks);
                inbox.put(Letter::new(first + 1), &mut blanks);
            })
        });
        let mut unread = Unread::new();
        let mut got = Vec::new();
        for _ in 0..2 {
            got.extend(unread.next(&inbox));
        }
        // A reader that sends as well, maybe on the memory of what it has read.
        inbox.put(Letter::new(30), &mut Blanks::new());
        for sender in senders {
            sender.join().unwrap();
        }
        got.extend(std::iter::from_fn(|| unread.next(&inbox)));
        let got: Vec<_> = got.iter().map(Letter::read).collect();
        let of = |tens| -> Vec<u32> {
            let got = got.iter().copied();
            got.filter(|number| number / 10 == tens).collect()
        };
        assert_eq!(
            (of(1), of(2), of(3)),
            (vec![10, 11], vec![20, 21], vec![30])
        );
    });
}

#[test]
fn memory_that_a_reader_gives_back_belongs_to_one_sender() {
    explore(3, || {
        let inbox: Arc<Inbox<Letter>> = Arc::new(Inbox::new());
        let mut unread = Unread::new();
        let mut got = Vec::new();
        inbox.put(Letter::new(1), &mut Blanks::new());
        got.extend(unread.next(&inbox));
        let senders = [2, 3].map(|number| {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.put(Letter::new(number), &mut Blanks::new()))
        });
        got.extend(unread.next(&inbox));
        for sender in senders {
            sender.join().unwrap();
        }
        got.extend(std::iter::from_fn(|| unread.next(&inbox)));
        let mut got: Vec<_> = got.iter().map(Letter::read).collect();
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3]);
    });
}

#[test]
fn a_lane_counts_what_is_in_it() {
    explore(3, || {
        let limits = QueueLimits {
            frames: 2,
            bytes: 100,
        };
        let lane = Arc::new(Lane::new(limits));
        let sender = {
            let lane = lane.clone();
            thread::spawn(move || {
                let mut blanks = FrameBlanks::new();
                let put = |byte| lane.put(vec![byte; 10], &mut blanks).is_ok();
                [1, 2, 3].map(put)
            })
        };
        let mut got = Vec::new();
        let mut take = || {
            let mut frames = lane.take();
            got.extend(std::iter::from_fn(|| frames.pop()));
            assert!(lane.len() <= 2);
        };
        take();
        let put = sender.join().unwrap();
        take();
        assert!(put[0] && put[1]);
        let expected: Vec<u8> = (1..=3).filter(|&byte| put[usize::from(byte) - 1]).collect();
        let got: Vec<u8> = got.iter().map(|frame| frame[0]).collect();
        assert_eq!((got, lane.len()), (expected, 0));
        assert!(lane.put(vec![0; 100], &mut FrameBlanks::new()).is_ok());
    });
}

#[test]
fn a_set_loses_no_number() {
    explore(3, || {
        let set = Arc::new(AtomicSet::new(128));
        let adders = [[3, 4], [3, 70]].map(|numbers| {
            let set = set.clone();
            thread::spawn(move || numbers.into_iter().for_each(|number| set.insert(number)))
        });
        let (mut first, mut last) = (Vec::new(), Vec::new());
        set.drain(|number| first.push(number));
        for adder in adders {
            adder.join().unwrap();
        }
        set.drain(|number| last.push(number));
        assert!(set.is_empty() && [3, 4, 70].iter().all(|&number| !set.contains(number)));
        // One that was added twice may be visited twice, but not in one call.
        let all: BTreeSet<_> = first.iter().chain(&last).copied().collect();
        assert_eq!(all, BTreeSet::from([3, 4, 70]));
        for visited in [first, last] {
            let different: BTreeSet<_> = visited.iter().collect();
            assert_eq!(different.len(), visited.len());
        }
    });
}

#[test]
fn a_reader_gets_the_latest_value() {
    loom::model(|| {
        let latest: Arc<Latest<Letter>> = Arc::new(Latest::new());
        let writer = {
            let latest = latest.clone();
            thread::spawn(move || {
                latest.put(Letter::new(1));
                latest.put(Letter::new(2));
            })
        };
        let mut got = Vec::new();
        for _ in 0..2 {
            got.extend(latest.take());
        }
        writer.join().unwrap();
        got.extend(latest.take());
        let got: Vec<_> = got.iter().map(Letter::read).collect();
        assert!(got == [1, 2] || got == [2], "{got:?}");
    });
}

#[test]
fn what_is_noted_while_another_one_has_the_state_is_done() {
    explore(3, || {
        let state = Arc::new(Attended::new(0));
        let notes = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let attend = |state: &Attended<u32>, notes: &[AtomicBool; 2]| {
            // The weakest accesses: the order comes from `attend` alone.
            let is_due = || notes.iter().any(|note| note.load(Ordering::Relaxed));
            let work = |done: &mut u32| {
                for note in notes {
                    *done += u32::from(note.swap(false, Ordering::Relaxed));
                }
            };
            state.attend(is_due, work);
        };
        let threads = [0, 1].map(|index| {
            let (state, notes) = (state.clone(), notes.clone());
            thread::spawn(move || {
                notes[index].swap(true, Ordering::Relaxed);
                attend(&state, &notes);
            })
        });
        state.change(|done| *done += 10);
        attend(&state, &notes);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(state.change(|done| *done), 12);
    });
}

#[test]
fn nothing_is_done_with_state_from_before_a_change() {
    explore(3, || {
        let (state, note) = (Arc::new(Attended::new(0)), Arc::new(AtomicBool::new(false)));
        let done = Arc::new([(); 2].map(|()| AtomicBool::new(false)));
        let attend = |state: &Attended<usize>, note: &AtomicBool, done: &[AtomicBool; 2]| {
            let is_due = || note.load(Ordering::Relaxed);
            let work = |index: &mut usize| {
                note.store(false, Ordering::Relaxed);
                done[*index].store(true, Ordering::Relaxed);
            };
            state.attend(is_due, work);
        };
        let user = thread::spawn({
            let (state, note, done) = (state.clone(), note.clone(), done.clone());
            move || {
                note.store(true, Ordering::Relaxed);
                attend(&state, &note, &done);
            }
        });
        state.change(|index| *index = 1);
        let before = done[0].load(Ordering::Relaxed);
        attend(&state, &note, &done);
        user.join().unwrap();
        let [old, new] = [0, 1].map(|index| done[index].load(Ordering::Relaxed));
        assert_eq!(old, before, "done after the change");
        assert!(old || new);
    });
}

#[test]
fn one_worker_has_everything_until_it_is_overloaded() {
    loom::model(|| {
        let roster = Roster::new(5, 3).unwrap();
        let homes = |roster: &Roster| {
            let home = |unit| (0..3).find(|&worker| roster.is_home(unit, worker)).unwrap();
            [0, 1, 2, 3, 4].map(home)
        };
        assert!(!roster.is_single());
        assert_eq!(homes(&roster), [0; 5]);
        assert_eq!(roster.retire(0), Retirement::Last, "nobody else is awake");
        assert!(
            !roster.share(0, &[(4, vec![0, 1, 2, 3])]),
            "what belongs together stays"
        );
        roster.set_load(0, 4);
        assert_eq!(roster.begin_turn(0, 10), 10);
        assert!(roster.share(0, &[(2, vec![0, 1]), (2, vec![2, 3])]));
        assert_eq!(homes(&roster), [1, 1, 0, 0, 0]);
        assert_eq!(
            roster.begin_turn(0, 20),
            10,
            "the second one has not run yet"
        );
        assert_eq!(roster.begin_turn(1, 30), 20);
        // It was woken, so it does not rest.
        roster.rest(1);
        roster.set_load(0, 2);
        roster.set_load(1, 2);
        assert!(!roster.share(0, &[(2, vec![2, 3])]));
        assert!(
            roster.share(0, &[(1, vec![2]), (1, vec![3])]),
            "the third worker helps, too"
        );
        assert_eq!(homes(&roster), [1, 1, 2, 0, 0]);
        assert!(
            !roster.follow(0, &[3], 2),
            "nobody follows to a higher number"
        );
        assert!(roster.follow(2, &[2], 3));
        assert_eq!(homes(&roster), [1, 1, 0, 0, 0]);
        // What a worker has given away is no longer its to give.
        assert!(!roster.follow(2, &[2], 0));
        assert!(!roster.share(2, &[(1, vec![2]), (4, vec![4])]));
        assert_eq!(homes(&roster), [1, 1, 0, 0, 0]);
        assert_eq!(roster.begin_turn(2, 40), 20);
        assert_eq!(
            [1, 0].map(|worker| roster.retire(worker)),
            [Retirement::Done; 2]
        );
        assert_eq!(homes(&roster), [2; 5]);
        assert_eq!(roster.begin_turn(2, 50), 50, "who rests has no turn");
        assert_eq!(roster.retire(2), Retirement::Last);
        roster.scatter(2, |unit| unit);
        assert_eq!(homes(&roster), [0, 1, 2, 0, 1]);
        roster.stop();
        roster.rest(0);
    });
}

/// Two workers and two units. A doorbell rings at the first unit, which then has a letter for the second one.
struct Shop {
    roster: Roster,
    waker: Waker,
    doorbell: AtomicBool,
    second: Receiver,
}

impl Shop {
    /// Gives both units a turn if this is their home. Returns whether there was anything.
    fn turn(&self, worker: usize) -> bool {
        let mut worked = false;
        if self.roster.is_home(0, worker) && self.doorbell.swap(false, Ordering::SeqCst) {
            self.second.put(Letter::new(1), &mut Blanks::new());
            worked = true;
        }
        if self.roster.is_home(1, worker) {
            match self.second.try_take() {
                Some(mut got) if got.has_letters() => {
                    empty(&mut got);
                    // All is done when the letter has been read.
                    if !got.is_empty() {
                        self.waker.stop();
                        self.roster.stop();
                    }
                    worked = true;
                }
                Some(_) => {}
                None => {
                    thread::yield_now();
                    worked = true;
                }
            }
        }
        worked
    }

    fn work(&self, worker: usize) {
        if worker > 0 {
            self.roster.rest(worker);
        }
        while !self.waker.is_stopping() {
            if self.turn(worker) {
                continue;
            }
            match self.roster.retire(worker) {
                Retirement::Done => {
                    self.roster.rest(worker);
                    continue;
                }
                Retirement::Later => {
                    thread::yield_now();
                    continue;
                }
                Retirement::Last => {}
            }
            self.waker.announce();
            if self.doorbell.load(Ordering::SeqCst) || self.second.take().has_letters() {
                self.waker.cancel();
            } else {
                self.waker.sleep(None);
            }
        }
    }
}

#[test]
fn no_doorbell_and_no_letter_is_left_while_everybody_sleeps() {
    for shared in [0, 1] {
        explore(2, move || {
            let shop = Arc::new(Shop {
                roster: Roster::new(2, 2).unwrap(),
                waker: Waker::new().unwrap(),
                doorbell: AtomicBool::new(false),
                second: Actor::new(Vec::new()),
            });
            shop.roster.set_load(0, 2);
            let workers = [0, 1].map(|worker| {
                let shop = shop.clone();
                thread::spawn(move || {
                    if worker == 0 {
                        // It is overloaded for a moment.
                        shop.roster
                            .share(0, &[(1, vec![shared]), (1, vec![1 - shared])]);
                    }
                    shop.work(worker);
                })
            });
            // Not a store, which loom would put both before and after an earlier swap.
            shop.doorbell.swap(true, Ordering::SeqCst);
            shop.waker.wake();
            for worker in workers {
                worker.join().unwrap();
            }
            assert_eq!(*shop.second.take(), [1]);
        });
    }
}
