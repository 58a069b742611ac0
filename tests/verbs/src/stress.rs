// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The data-verifying stress test: both ends compute the same random plan from a seed, so each knows every byte,
//! length, immediate value and completion it must see, and nothing but the traffic itself is exchanged.

pub mod datagrams;
pub mod endpoint;
mod initiator;
pub mod plan;
mod pool;
mod responder;

use std::fmt::Display;

/// Anything that went wrong in a stress run, in words.
#[derive(Debug)]
pub struct Failure(pub String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(e: E) -> Self {
        Failure(e.to_string())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Result of a part of a stress run.
pub type Outcome<T> = Result<T, Failure>;

/// Adds what was being done to an error.
pub trait During<T> {
    /// On error, says `what` was being done.
    fn during(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Display> During<T> for Result<T, E> {
    fn during(self, what: impl Display) -> Outcome<T> {
        self.map_err(|e| Failure(format!("{what}: {e}")))
    }
}

/// Fails with a formatted message unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err($crate::stress::Failure(format!($($message)*)));
        }
    };
}
