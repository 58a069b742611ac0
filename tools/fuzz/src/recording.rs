// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Recordings that somebody made up.
//!
//! What is no recording is refused, and what is one but does not belong to this engine differs from what it does. Both
//! is told, and the engine does not panic over anything that stands in a recording.

use vrnic_engine::recording::{Failed, Recording, replay};

/// Runs one input.
pub fn run(data: &[u8]) {
    let parsed = Recording::new(data).map(|recording| recording.flatten().count());
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
