// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Carries questions to the workers and their answers back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use super::protocol::{Reply, Request};
use crate::capture::Capture;
use crate::recording::Tape;
use crate::waker::Waker;

/// How long a client waits for the worker.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest number of questions that can wait.
const MAX_WAITING: usize = 64;

/// A question or an instruction for the worker.
pub enum Topic {
    /// A client's request.
    Request(Request),
    /// A new capture. The worker takes it; the reply carries no information.
    Capture(Option<Capture>),
    /// The number of a capture to be ended.
    EndOfCapture(u64),
    /// A new recording of the device with that name. The worker takes it.
    Tape(String, Option<Tape>),
}

/// A question, and the channel for the answer.
pub struct Question {
    /// What is asked.
    pub topic: Topic,
    reply: SyncSender<Reply>,
}

impl Question {
    /// Sends the answer. The client that asked may have gone away.
    pub fn answer(self, reply: Reply) {
        let _ = self.reply.try_send(reply);
    }
}

/// The queue in which questions wait for the worker's next turn.
pub struct Inspector {
    waiting: Mutex<VecDeque<Question>>,
    any: AtomicBool,
    waker: Arc<Waker>,
}

impl Inspector {
    /// Creates an empty queue, which wakes the worker through `waker`.
    pub fn new(waker: Arc<Waker>) -> Self {
        Self {
            waiting: Mutex::new(VecDeque::new()),
            any: AtomicBool::new(false),
            waker,
        }
    }

    /// Asks the worker and waits for its answer.
    pub fn ask(&self, topic: Topic) -> Reply {
        let (reply, answer) = sync_channel(1);
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= MAX_WAITING {
                return Reply::Error("too many requests are waiting already".into());
            }
            waiting.push_back(Question { topic, reply });
            self.any.store(true, Ordering::SeqCst);
        }
        self.waker.wake();
        answer
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| Reply::Error("the worker does not answer in time".into()))
    }

    /// Returns whether a question is waiting.
    pub fn is_asked(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Removes and returns the next question. Does not wait for a client that is leaving another one: its question
    /// keeps [waiting](Self::is_asked).
    pub fn next(&self) -> Option<Question> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut waiting = match self.waiting.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let question = waiting.pop_front();
        self.any.store(!waiting.is_empty(), Ordering::SeqCst);
        question
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_does_not_wait_for_a_client_that_got_stuck() {
        let inspector = Inspector::new(Arc::new(Waker::new().unwrap()));
        let (reply, _answer) = sync_channel(1);
        let topic = Topic::EndOfCapture(1);
        let question = Question { topic, reply };
        let mut stuck = inspector.waiting.lock().unwrap();
        stuck.push_back(question);
        inspector.any.store(true, Ordering::SeqCst);
        assert!(inspector.next().is_none() && inspector.is_asked());
        drop(stuck);
        assert!(inspector.next().is_some() && !inspector.is_asked());
    }
}
