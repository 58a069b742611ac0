// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Tests of [`inbox`](crate::inbox) with real threads, apart from it because `tests/model.rs` compiles it without them.

use std::rc::Rc;
use std::sync::Arc;

use crate::inbox::{Blanks, Inbox, Latest, MAX_BLANKS, TURNED_AT_ONCE, Unread};

#[test]
fn letters_come_in_order_and_their_memory_is_used_again() {
    let inbox = Inbox::new();
    let (mut unread, mut blanks) = (Unread::new(), Blanks::new());
    for round in 0..3 {
        for number in 0..10 {
            inbox.put(10 * round + number, &mut blanks);
        }
        assert_eq!(blanks.count(), 0);
        for number in 0..10 {
            let letter = unread.next(&inbox, &mut blanks);
            assert_eq!(letter, Some(10 * round + number));
            if number == 0 {
                assert!(!inbox.has_letters() && !unread.is_empty());
            }
        }
        assert_eq!(
            (unread.next(&inbox, &mut blanks), blanks.count()),
            (None, 10)
        );
    }
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
        assert_eq!(unread.next(&inbox, &mut blanks), None);
        assert!(!unread.is_empty());
    }
    // What comes later is read later.
    inbox.put(count, &mut blanks);
    for number in 0..=count {
        assert_eq!(unread.next(&inbox, &mut blanks), Some(number));
    }
    assert_eq!(unread.next(&inbox, &mut blanks), None);
    assert_eq!(blanks.count(), MAX_BLANKS);
}

#[test]
fn nothing_that_is_not_read_is_leaked() {
    let letter = Rc::new(());
    let inbox = Inbox::new();
    let (mut unread, mut blanks) = (Unread::new(), Blanks::new());
    for _ in 0..2 * TURNED_AT_ONCE {
        inbox.put(letter.clone(), &mut blanks);
    }
    assert_eq!(unread.next(&inbox, &mut blanks), None);
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
        let (mut unread, mut blanks) = (Unread::new(), Blanks::new());
        let mut expected = [0; 3];
        while expected != [LETTERS; 3] {
            match unread.next(&inbox, &mut blanks) {
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
