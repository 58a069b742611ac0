// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The control socket: what `vrnicctl` asks, and what the daemon answers.
//!
//! * [`protocol`]: requests and replies, one JSON object a line.
//! * [`server`]: the socket; a thread for each of a few clients.
//! * [`inspector`]: carries questions to the worker, which owns the devices, and answers back.
//! * [`answer`]: what the worker answers; a question takes it a bounded time.
//! * [`client`]: the other end.
//!
//! The socket's permissions say who may ask and who may capture. The file of a capture comes as an open descriptor, so
//! no client can write a file through this process that it could not write itself. A client can neither keep the worker
//! busy (it answers one question a turn, each about a page of objects) nor fill memory (lines, clients, captures and
//! replies are bounded). A client that neither reads nor writes is disconnected.

pub mod answer;
pub mod client;
pub mod inspector;
pub mod protocol;
pub mod server;
