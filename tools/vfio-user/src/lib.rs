// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Server side of the vfio-user protocol (`docs/interop/vfio-user.rst` of QEMU), with which a separate process provides
//! a device to a virtual machine.
//!
//! * [`message`]: layouts; pure parsing, no I/O.
//! * [`stream`]: bytes and file descriptors over a UNIX socket.
//! * [`session`]: one connection: negotiation, and dispatch to a [`Device`].
//! * [`journal`] and `noted_io`: the state of a connection, in memory that outlives the process, so that a successor
//!   can [take over](take_over).
//! * [`Mapping`]: guest memory, mapped once and in full. [`sigbus`] copes with a VMM that removes its pages.
//! * [`stop`]: ends all sessions.
//! * [`client`]: the client side, for tests and measurements.
//!
//! The thread that serves a connection should wait for nothing but the socket: QEMU queues posted writes without a
//! limit and gives up a device that does not answer for five seconds.
//!
//! # Example
//!
//! A device with one region of eight bytes, and a client that writes to it.
//!
//! ```
//! use std::os::fd::OwnedFd;
//! use std::os::unix::net::UnixStream;
//! use std::sync::Arc;
//!
//! use rustix::io::Errno;
//! use vrnic_vfio_user::client::Client;
//! use vrnic_vfio_user::journal::Journal;
//! use vrnic_vfio_user::message::{DmaMap, DmaUnmap, IrqSet};
//! use vrnic_vfio_user::stop::Stop;
//! use vrnic_vfio_user::stream::MessageStream;
//! use vrnic_vfio_user::{Device, serve};
//!
//! #[derive(Default)]
//! struct Register([u8; 8]);
//!
//! impl Device for Register {
//!     fn info(&self) -> (u32, u32, u32) {
//!         (0, 1, 0)
//!     }
//!     fn region(&self, index: u32) -> Result<(u32, u64), Errno> {
//!         if index == 0 { Ok((3, 8)) } else { Err(Errno::INVAL) }
//!     }
//!     fn irq(&self, _: u32) -> Result<(u32, u32), Errno> {
//!         Err(Errno::INVAL)
//!     }
//!     fn set_irqs(&mut self, _: &IrqSet, _: &[u8], _: Vec<OwnedFd>) -> Result<(), Errno> {
//!         Err(Errno::INVAL)
//!     }
//!     fn read(&mut self, _: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
//!         // The range was checked.
//!         data.copy_from_slice(&self.0[offset as usize..][..data.len()]);
//!         Ok(())
//!     }
//!     fn write(&mut self, _: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
//!         self.0[offset as usize..][..data.len()].copy_from_slice(data);
//!         Ok(())
//!     }
//!     fn dma_map(&mut self, _: &DmaMap, _: Option<OwnedFd>) -> Result<(), Errno> {
//!         Ok(())
//!     }
//!     fn dma_unmap(&mut self, _: &DmaUnmap) -> Result<(), Errno> {
//!         Ok(())
//!     }
//!     fn reset(&mut self) -> Result<(), Errno> {
//!         self.0 = [0; 8];
//!         Ok(())
//!     }
//! }
//!
//! let (ours, theirs) = UnixStream::pair().unwrap();
//! let server = std::thread::spawn(move || {
//!     let journal = Journal::new().unwrap().0;
//!     let stream = MessageStream::new(ours, Arc::new(Stop::new().unwrap()), journal);
//!     serve(stream, &mut Register::default())
//! });
//! let mut client = Client::new(theirs);
//! client.negotiate("{}").unwrap();
//! client.write(0, 4, &[7]).unwrap();
//! assert_eq!(client.read(0, 0, 8).unwrap(), [0, 0, 0, 0, 7, 0, 0, 0]);
//! drop(client);
//! server.join().unwrap();
//! ```

#![deny(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "registers and fields are narrowed where their range is known"
)]
#![allow(
    clippy::doc_markdown,
    reason = "commands, registers and status bits are written as their standards write them"
)]

pub mod client;
pub mod journal;
#[allow(unsafe_code, reason = "maps memory of the guest")]
pub mod mapping;
pub mod message;
#[allow(unsafe_code, reason = "system calls that no safe crate has")]
mod noted_io;
pub mod session;
#[allow(unsafe_code, reason = "handles a signal")]
pub mod sigbus;
pub mod stop;
pub mod stream;

pub use mapping::Mapping;
pub use session::{Device, Disconnect, serve, take_over};
