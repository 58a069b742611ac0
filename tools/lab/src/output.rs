// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Standard output and standard error, whose reader may leave early, as `head` and `grep -q` do.

use std::fmt;
use std::io::{ErrorKind, Write};

use anyhow::Result;

use vrnic_lab::protocol::Stream;

/// Prints a line to standard output. If its reader left, the line is dropped and the work goes on: a test run or a lab
/// does not end because nobody reads any more.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

/// Prints a line to standard error, as [`say`] does to standard output.
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

pub(crate) use {say, tell};

/// Passes on what a program printed, at once.
///
/// # Errors
/// [`ReaderLeft`], or the stream takes no more for another reason.
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

/// The reader of a program's output has left, and how the program ends will not be known.
#[derive(Debug)]
pub struct ReaderLeft;

impl ReaderLeft {
    /// What a shell says of programs that SIGPIPE ended.
    pub const EXIT_CODE: u8 = 141;
}

impl fmt::Display for ReaderLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for ReaderLeft {}
