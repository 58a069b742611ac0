// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Standard output and standard error, whose reader may close them early, as `head` and `grep -q` do.

use std::fmt;
use std::io::{ErrorKind, Write};

use anyhow::Result;

use vrnic_lab::protocol::Stream;

/// Prints a line to standard output. If the reader has closed it, the line is dropped and the work continues: a test
/// run or a lab does not end because its output is no longer read.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

/// Prints a line to standard error, like [`say`] to standard output.
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// Prints a line to standard output, or to standard error if standard output is for JSON (`json`).
macro_rules! note {
    ($json:expr, $($words:tt)*) => {
        if $json {
            $crate::output::tell!($($words)*);
        } else {
            $crate::output::say!($($words)*);
        }
    };
}

pub(crate) use {note, say, tell};

/// Prints a value as JSON.
///
/// # Errors
/// It cannot be written as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    say!("{text}");
    Ok(())
}

/// Passes on the output of a program immediately.
///
/// # Errors
/// [`ReaderLeft`] if the reader has closed the stream, or another error if it cannot be written for another reason.
pub fn pass_on(stream: Stream, bytes: &[u8]) -> Result<()> {
    let mut to: Box<dyn Write> = match stream {
        Stream::Out => Box::new(std::io::stdout().lock()),
        Stream::Err => Box::new(std::io::stderr().lock()),
    };
    match to.write_all(bytes).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderLeft.into()),
        result => Ok(result?),
    }
}

/// Error: the reader of a program's output has closed it, so the program's result is unknown.
#[derive(Debug)]
pub struct ReaderLeft;

impl ReaderLeft {
    /// Exit code by which shells report that SIGPIPE ended a program.
    pub const EXIT_CODE: u8 = 141;
}

impl fmt::Display for ReaderLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output has closed it")
    }
}

impl std::error::Error for ReaderLeft {}
