// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl web`: a page in the browser that shows what the devices of a vrnicd do.
//!
//! * [`access`]: access control by a token, by the server's names, and against other sites.
//! * [`decode`]: reads captures and recordings.
//! * [`http`]: requests and responses.
//! * [`lessons`]: experiments in a separate lab, for people who learn RDMA.
//! * [`page`]: the files of the page, which are part of the program.
//! * [`source`]: queries the control socket once for all clients.
//! * [`server`]: dispatches requests.
//!
//! The control socket is the only source of data. It is queried only while a client is watching. Each client has a
//! thread and no queue: the thread sends the newest state whenever the client has accepted the previous one. So a slow
//! client misses states but uses no memory. The number of clients is limited.
//!
//! The page consists of JavaScript modules and a style sheet, and uses nothing from elsewhere. Names come from guests
//! and configurations. The page displays them as text, and the browser refuses to turn strings into markup (Trusted
//! Types) and to run any script except the files of this crate.

#![forbid(unsafe_code)]

pub mod access;
pub mod decode;
pub mod http;
pub mod lessons;
pub mod page;
pub mod server;
pub mod source;

pub use lessons::Classroom;
pub use server::{Options, Server};
