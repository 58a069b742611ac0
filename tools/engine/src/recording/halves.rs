// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The flight recorder that can be replayed: the last calls of a device, after the state that it had before them.
//!
//! The calls are in two halves. When the newer half is full, the older one is dropped, and a third begins with the
//! state. So at least half of the capacity is always available. A [mark](super::Input::Mark) ends each half, so that
//! the first call after it is never written as a repetition of a call that may have been dropped.

use super::{format::Header, recorder::Recorder};
use crate::{rnic::Engine, time::Instant};

/// Bytes of calls in a full half.
const HALF: usize = 2 << 20;

/// Largest state in bytes, so that writing it takes little time compared to the calls of a half.
const MAX_STATE: usize = HALF / 4;

/// Number of calls after which a state that was too large is tried again.
const PAUSE: u32 = 1 << 16;

/// The last calls of a device, except for those in its [`Recorder`].
#[derive(Debug)]
pub(crate) struct Halves {
    device: String,
    /// What precedes the calls of each half: the older one, and the one in the recorder.
    heads: [Vec<u8>; 2],
    older: Vec<u8>,
    /// Number of calls until the state is tried again.
    pause: u32,
}

impl Halves {
    /// Creates the halves of a device with this name that has not been called yet.
    pub(crate) fn new(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            heads: Default::default(),
            older: Vec::new(),
            pause: 0,
        }
    }

    /// Creates the header of a recording that begins at `start`, which must be now. Returns `None` if the state is too
    /// large.
    fn header(&mut self, engine: &Engine, start: Instant) -> Option<Header> {
        let state = engine.state(MAX_STATE);
        if state.is_none() {
            self.pause = PAUSE;
        }
        state.map(|state| Header {
            state: Some(state),
            start,
            ..Header::new(&self.device, engine.config.clone())
        })
    }

    /// Returns whether there is something to do before the next call.
    #[inline]
    pub(crate) fn is_due(recorder: Option<&Recorder>) -> bool {
        recorder.is_none_or(|recorder| recorder.waiting() >= HALF && !recorder.has_panicked())
    }

    /// Starts a recorder of the first half. Returns `None` if the state is too large.
    pub(crate) fn begin(&mut self, engine: &Engine) -> Option<Box<Recorder>> {
        self.older = Vec::new();
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        let header = self.header(engine, engine.resources.now)?;
        let mut recorder = Recorder::new(&header, u64::MAX);
        self.heads[1] = recorder.take();
        Some(Box::new(recorder))
    }

    /// Starts the next half because the current one is full. Returns false if the state is too large.
    pub(crate) fn turn(&mut self, recorder: &mut Recorder, engine: &Engine) -> bool {
        recorder.mark();
        let Some(header) = self.header(engine, recorder.now()) else {
            return false;
        };
        recorder.swap(&mut self.older);
        let [older, newer] = &mut self.heads;
        std::mem::swap(older, newer);
        newer.clear();
        header.put(newer);
        true
    }

    /// Returns the recording of the last calls. It ends now because of `why`, or because the last call panicked.
    pub(crate) fn finish(&self, recorder: &mut Recorder, why: &str) -> Vec<u8> {
        recorder.end(why);
        let head = &self.heads[usize::from(self.older.is_empty())];
        [head, &self.older, &recorder.take()[..]].concat()
    }
}
