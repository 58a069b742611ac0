// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Tests of [`inbox`](crate::inbox) with real threads, apart from it because `tests/model.rs` compiles it without them.

use std::rc::Rc;
use std::sync::Arc;

use crate::inbox::{Blanks, Inbox, Latest, MAX_SPENT, TURNED_AT_ONCE, Unread};

#[test]
fn letters_come_in_order_and_their_memory_is_used_again() {
    let inbox = Inbox::new();
    let (mut unread, mut blanks) = (Unread::new(), Blanks::new());
    for round in 0..3 {
        for number in 0..10 {
            inbox.put(10 * round + number, &mut blanks);
            // The first letter of a round takes the memory of all that the receiver has read.
            let left = if round == 0 { 0 } else { 9 - number };
            assert_eq!(blanks.count(), left);
        }
        for number in 0..10 {
            assert_eq!(unread.next(&inbox), Some(10 * round + number));
            if number == 0 {
                assert!(!inbox.has_letters() && !unread.is_empty());
            }
        }
        assert_eq!(unread.next(&inbox), None);
    }
}

#[test]
fn nobody_waits_for_memory_that_others_keep() {
    let inbox = Inbox::new();
    let (mut unread, mut blanks) = (Unread::new(), [Blanks::new(), Blanks::new()]);
    let mut send = |sender: usize, unread: &mut Unread<usize>| {
        inbox.put(sender, &mut blanks[sender]);
        assert_eq!(unread.next(&inbox), Some(sender));
        blanks[sender].count()
    };
    // The receiver keeps what it reads until a sender takes what it gave back before.
    let kept = [0, 0, 1, 0, 1].map(|sender| send(sender, &mut unread));
    assert_eq!(kept, [0; 5]);
    (0..100).for_each(|number| inbox.put(number, &mut Blanks::new()));
    (0..100).for_each(|number| assert_eq!(unread.next(&inbox), Some(number)));
    assert!((0..4).any(|_| send(1, &mut unread) > 90));
}

#[test]
fn a_call_turns_a_bounded_number_of_letters_around() {
    let inbox = Inbox::new();
    let (mut unread, mut blanks) = (Unread::new(), Blanks::new());
    let count = 10 * TURNED_AT_ONCE + 1;
    for number in 0..count {
        inbox.put(number, &mut blanks);
    }
    for _ in 0..10 {
        assert_eq!(unread.next(&inbox), None);
        assert!(!unread.is_empty());
    }
    // What comes later is read later.
    inbox.put(count, &mut blanks);
    for number in 0..=count {
        assert_eq!(unread.next(&inbox), Some(number));
    }
    assert_eq!(unread.next(&inbox), None);
    inbox.put(0, &mut blanks);
    assert_eq!(blanks.count(), MAX_SPENT - 1, "not more than that is kept");
}

#[test]
fn nothing_that_is_not_read_is_leaked() {
    let letter = Rc::new(());
    let inbox = Inbox::new();
    let (mut unread, mut blanks) = (Unread::new(), Blanks::new());
    for _ in 0..2 * TURNED_AT_ONCE {
        inbox.put(letter.clone(), &mut blanks);
    }
    assert_eq!(unread.next(&inbox), None);
    inbox.put(letter.clone(), &mut blanks);
    drop((inbox, unread, blanks));
    let latest = Latest::new();
    for _ in 0..3 {
        latest.put(letter.clone());
        assert_eq!(Rc::strong_count(&letter), 2, "only the last one is kept");
    }
    drop(latest);
    assert_eq!(Rc::strong_count(&letter), 1);
}

#[test]
fn only_the_latest_value_comes_and_only_once() {
    let latest = Latest::new();
    assert_eq!(latest.take(), None);
    (0..5).for_each(|value| latest.put(value));
    assert_eq!((latest.take(), latest.take()), (Some(4), None));
}

#[test]
fn all_letters_can_be_taken_at_once() {
    let (inbox, mut blanks) = (Inbox::new(), Blanks::new());
    (0..5).for_each(|number| inbox.put(number, &mut blanks));
    assert_eq!(inbox.take().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(inbox.take().next(), None);
    inbox.put(5, &mut blanks);
    assert_eq!(blanks.count(), 4, "their memory comes back, too");
}

#[test]
fn nothing_is_lost_between_threads() {
    const LETTERS: u32 = 50_000;
    let inbox = Arc::new(Inbox::new());
    std::thread::scope(|scope| {
        for sender in 0..3 {
            let inbox = inbox.clone();
            scope.spawn(move || {
                let mut blanks = Blanks::new();
                (0..LETTERS).for_each(|number| inbox.put((sender, number), &mut blanks));
            });
        }
        let mut unread = Unread::new();
        let mut expected = [0; 3];
        while expected != [LETTERS; 3] {
            match unread.next(&inbox) {
                Some((sender, number)) => {
                    let expected: &mut u32 = &mut expected[sender];
                    assert_eq!(number, *expected);
                    *expected += 1;
                }
                None => std::thread::yield_now(),
            }
        }
    });
}
