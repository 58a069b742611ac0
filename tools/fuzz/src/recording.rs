// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Forged recordings.
//!
//! Bytes that are not a recording must be refused. A recording that does not belong to this engine must be reported as
//! different from what the engine does. The engine must not panic over the contents of a recording. In an impossible
//! state, however, an engine may panic, so a recording that contains a state is not replayed; only the state is
//! checked.

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
            let wanted = divergence.what.contains("an injected fault");
            assert!(!panics || wanted, "{divergence}");
        }
    }
}
