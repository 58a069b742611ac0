// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The control socket: requests from `vrnicctl` and the daemon's replies.
//!
//! * [`protocol`]: requests and replies, one JSON object per line.
//! * [`server`]: the socket, and a thread for each of a limited number of clients.
//! * [`inspector`]: carries questions to the worker, which owns the devices, and the answers back.
//! * [`answer`]: makes the worker's answers, each within a bounded time.
//! * [`client`]: the client's side of the socket.
//!
//! The socket's permissions decide who may query the daemon and who may capture. The file of a capture comes as an open
//! descriptor, so a client cannot use this process to write a file that it could not write itself. A client can neither
//! keep the worker busy (the worker answers one question per turn, each about one page of objects) nor fill memory
//! (lines, clients, captures and replies are bounded). A client that neither reads nor writes is disconnected.

pub mod answer;
pub mod client;
pub mod inspector;
pub mod protocol;
pub mod server;
