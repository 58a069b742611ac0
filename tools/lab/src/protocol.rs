// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Frames on the virtio-serial port between the lab and the agent in a guest.
//!
//! One frame is one line of JSON. Many commands run at once; each has an `id` that the lab chooses and that stands in
//! every frame about it. Output is base64 because programs may print any bytes.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "vrnic.agent";

/// From the lab to the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Answered by [`Reply::Pong`]; tells that the agent is up.
    Ping,
    /// Starts a program in its own process group.
    Start {
        /// Names the program from now on.
        id: u64,
        /// Program and arguments; no shell is involved.
        argv: Vec<String>,
        /// Added to the agent's environment.
        env: BTreeMap<String, String>,
    },
    /// Waits until somebody listens on a TCP port: `Exit` with 0, or with 1 if `program` ended before.
    AwaitListener {
        /// Names the waiting.
        id: u64,
        /// Which port.
        port: u16,
        /// Who is to listen.
        program: u64,
    },
    /// Kills the program's whole process group with SIGKILL. Unknown and finished ids are ignored.
    Kill {
        /// Which program.
        id: u64,
    },
    /// Powers the guest off.
    PowerOff,
}

/// From the agent to the lab.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Sent once when the agent starts: programs of an earlier boot are gone.
    Hello,
    /// The agent still runs.
    Pong,
    /// Bytes a program printed.
    Output {
        /// Which program.
        id: u64,
        /// On which of its streams.
        stream: Stream,
        /// The bytes, base64.
        data: String,
    },
    /// The program ended and all its output was sent. Exactly one `Exit` or `Failed` is sent for each `Start`, and one
    /// `Exit` for each `AwaitListener`.
    Exit {
        /// Which program.
        id: u64,
        /// Exit code, or 128 + signal number as a shell reports it.
        code: i32,
    },
    /// The program could not be started.
    Failed {
        /// Which program.
        id: u64,
        /// Why.
        error: String,
    },
}

/// An output stream of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Encodes bytes for [`Reply::Output`].
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes the bytes of [`Reply::Output`].
///
/// # Errors
/// The text is not base64.
pub fn decode(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    STANDARD.decode(text)
}
