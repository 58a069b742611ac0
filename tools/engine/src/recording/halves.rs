// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The flight recorder that can be replayed: the last calls of a device, behind the state in which it was before them.
//!
//! The calls are in two halves. When the newer one is full, the older one is forgotten and a third begins with the
//! state, so that half of the calls are there at any time. A [mark](super::Input::Mark) ends each half: what follows it
//! is never written as a repetition, which it would be of a call that is forgotten by then.

use super::{format::Header, recorder::Recorder};
use crate::{rnic::Engine, time::Instant};

/// Bytes of calls that fill a half.
const HALF: usize = 2 << 20;

/// Most bytes of a state, so that writing it takes little time compared to the calls of a half.
const MAX_STATE: usize = HALF / 4;

/// Calls after which a state that was larger is looked at again.
const PAUSE: u32 = 1 << 16;

/// The last calls of a device, but for those that its [`Recorder`] has.
#[derive(Debug)]
pub(crate) struct Halves {
    device: String,
    /// What stands before the calls of each half: the older one, and that which the recorder has.
    heads: [Vec<u8>; 2],
    older: Vec<u8>,
    /// Calls until the state is looked at again.
    pause: u32,
}

impl Halves {
    /// Those of a device of that name, which was not called yet.
    pub(crate) fn new(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            heads: Default::default(),
            older: Vec::new(),
            pause: 0,
        }
    }

    /// The header of a recording that begins at `start`, which is now; `None` if the state is too large.
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

    /// Whether there is something to do before the next call.
    #[inline]
    pub(crate) fn is_due(recorder: Option<&Recorder>) -> bool {
        recorder.is_none_or(|recorder| recorder.waiting() >= HALF && !recorder.has_panicked())
    }

    /// A recorder of the first half; `None` if the state is too large.
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

    /// The half is full, and another begins. `false` if it cannot: the state is too large.
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

    /// The recording of the last calls, which ends now because of `why`, or because the last one panicked.
    pub(crate) fn finish(&self, recorder: &mut Recorder, why: &str) -> Vec<u8> {
        recorder.end(why);
        let head = &self.heads[usize::from(self.older.is_empty())];
        [head, &self.older, &recorder.take()[..]].concat()
    }
}
