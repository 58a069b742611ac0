// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What [`actor`](crate::actor), [`atomic_set`](crate::atomic_set), [`attended`](crate::attended),
//! [`inbox`](crate::inbox), `network::lane` and [`roster`](crate::roster) are made of. `tests/model.rs` compiles these
//! modules with other types in these places, which explore what threads can do.

pub use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
pub use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
