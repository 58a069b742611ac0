// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Manual pages and shell completions, generated from the definitions of the command lines.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

/// Hidden subcommand with which a program writes its manual.
pub const SUBCOMMAND: &str = "write-manual";

/// Writes the manual pages of a program and its subcommands to `directory`/man`section`, and completions for bash, zsh
/// and fish to `directory`/completions.
///
/// # Errors
///
/// A file cannot be written.
pub fn write(mut command: Command, section: u8, directory: &Path) -> Result<()> {
    let name = command.get_name().to_owned();
    let pages = directory.join(format!("man{section}"));
    let completions = directory.join("completions");
    for directory in [&pages, &completions] {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, &name, &completions)
            .with_context(|| format!("completions of {name} for {shell}"))?;
    }
    page(
        command.disable_help_subcommand(true),
        &name,
        section,
        &pages,
    )
}

/// Writes the manual page of a command and those of its subcommands.
fn page(mut command: Command, name: &str, section: u8, directory: &Path) -> Result<()> {
    command.build();
    let listed = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for subcommand in command.get_subcommands().filter(listed) {
        let name = format!("{name}-{}", subcommand.get_name());
        page(subcommand.clone(), &name, section, directory)?;
    }
    let mut text = Vec::new();
    let manual = clap_mangen::Man::new(command.name(name.to_owned())).section(section.to_string());
    manual.render(&mut text)?;
    let path = directory.join(format!("{name}.{section}"));
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn pages_and_completions() {
        let directory = tempfile::tempdir().expect("a directory");
        let inner = Command::new("inner").about("Does it inside.");
        let hidden = Command::new(SUBCOMMAND).hide(true);
        let command = Command::new("outer")
            .about("Does it.")
            .version("7")
            .arg(Arg::new("file").long("file").help("File to read."))
            .subcommands([inner, hidden]);
        write(command, 8, directory.path()).expect("pages");
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).expect(name);
        assert!(read("man8/outer.8").contains("File to read."));
        assert!(read("man8/outer-inner.8").contains("Does it inside."));
        for name in ["outer.bash", "_outer", "outer.fish"] {
            assert!(
                read(&format!("completions/{name}")).contains("inner"),
                "{name}"
            );
        }
        let pages = fs::read_dir(directory.path().join("man8")).expect("pages");
        assert_eq!(pages.count(), 2, "hidden commands have no page");
    }
}
