// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl web`: a page in the browser that shows what the devices of a vrnicd do.
//!
//! * [`access`]: who may see it. A token, the names that the server is known by, and no other site.
//! * [`decode`]: what a capture tells.
//! * [`http`]: requests and responses.
//! * [`lessons`]: experiments with a lab of their own, for people who learn RDMA.
//! * [`page`]: the files of the page. They are part of the program.
//! * [`source`]: what the control socket says, once for all clients.
//! * [`server`]: which request gets which answer.
//!
//! The control socket is the only source. Nobody asks it anything while nobody looks. A client has a thread and no
//! queue: the thread sends the newest state whenever the client has taken the one before. So a slow client misses
//! states and takes no memory, and clients are counted.
//!
//! The page is modules of JavaScript and a style sheet. It uses nothing from elsewhere. Names come from guests and from
//! configurations. The page writes them as text; the browser refuses to make markup of strings (Trusted Types) and to
//! run any script but the files of this crate.

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
