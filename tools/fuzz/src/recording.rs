// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Recordings that somebody made up.
//!
//! What is no recording is refused, and what is one but does not belong to this engine differs from what it does. Both
//! is told, and the engine does not panic over anything that stands in a recording. An engine in a state that never was
//! may panic, so such states are only read.

use vrnic_engine::recording::{Failed, Player, Recording, replay};

/// Runs one input.
pub fn run(data: &[u8]) {
    let recording = Recording::new(data);
    if let Ok(recording) = &recording
        && let Some(state) = &recording.header().state
    {
        if let Ok(player) = Player::new(data) {
            assert_eq!(player.rnic().state(usize::MAX).as_ref(), Some(state));
        }
        return;
    }
    let parsed = recording.map(|recording| recording.flatten().count());
    match replay(data) {
        Ok(calls) => assert_eq!(parsed, Ok(calls as usize)),
        Err(Failed::Bad(bad)) => assert!(bad.at <= data.len(), "{bad}"),
        Err(Failed::Divergence(divergence)) => {
            let panics = divergence.what.starts_with("the engine panics");
            let wanted = divergence.what.contains("a fault that was armed");
            assert!(!panics || wanted, "{divergence}");
        }
    }
}
