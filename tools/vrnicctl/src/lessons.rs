// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl lessons`: experiments in a browser, with a vrnicd of their own.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vrnic_web::{Classroom, Server};

use crate::web::{Listen, print_address};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    listen: Listen,
    /// The vrnicd to start. By default, the one beside vrnicctl, or else the one in PATH.
    #[arg(long, value_name = "PATH")]
    vrnicd: Option<PathBuf>,
}

/// Returns the path of the vrnicd that was built or installed together with this program.
fn vrnicd() -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name("vrnicd"));
    beside
        .ok()
        .filter(|path| path.is_file())
        .unwrap_or_else(|| "vrnicd".into())
}

pub fn run(options: &Options, json: bool) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let program = options.vrnicd.clone().unwrap_or_else(vrnicd);
    let classroom = Arc::new(Classroom::open(&program)?);
    let server = Server::teach(options.listen.listen, classroom.clone())?;
    print_address(&server, json)?;
    std::thread::Builder::new()
        .name("server".into())
        .spawn(move || server.run())?;
    signals.forever().next();
    classroom.close();
    Ok(())
}
