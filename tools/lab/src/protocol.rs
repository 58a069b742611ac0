// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Frames on the virtio-serial port between the lab and the agent in a guest.
//!
//! Each frame is one line of JSON. Many commands run at the same time. Each has an `id` that the lab chooses, which is
//! in every frame about it. Output is base64, because programs may print any bytes.

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
    /// Answered by [`Reply::Pong`], which shows that the agent is running.
    Ping,
    /// Starts a program in its own process group.
    Start {
        /// Identifies the program from now on.
        id: u64,
        /// Program and arguments; no shell is involved.
        argv: Vec<String>,
        /// Added to the agent's environment.
        env: BTreeMap<String, String>,
    },
    /// Waits until something listens on a TCP port. Answered by `Exit` with 0, or with 1 if `program` ended before
    /// that.
    AwaitListener {
        /// Identifies this request.
        id: u64,
        /// The port.
        port: u16,
        /// ID of the program that should listen.
        program: u64,
    },
    /// Kills the program's whole process group with SIGKILL. Unknown and finished ids are ignored.
    Kill {
        /// ID of the program.
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
    /// The agent is still running.
    Pong,
    /// Output of a program.
    Output {
        /// ID of the program.
        id: u64,
        /// The stream on which it was printed.
        stream: Stream,
        /// The bytes, base64.
        data: String,
    },
    /// The program ended, and all its output has been sent. Exactly one `Exit` or `Failed` is sent for each `Start`,
    /// and one `Exit` for each `AwaitListener`.
    Exit {
        /// ID of the program.
        id: u64,
        /// Exit code, or 128 + signal number as in a shell.
        code: i32,
    },
    /// The program could not be started.
    Failed {
        /// ID of the program.
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
