// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Command lines of the form `--name value` and `--flag`.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Parsed options and positional words.
#[derive(Debug, Default)]
pub struct Args {
    options: BTreeMap<String, String>,
    words: Vec<String>,
}

impl Args {
    /// Parses this process's command line. `values` and `flags` are the options known; `--help` prints `usage` and
    /// exits, an unknown option prints it and exits with status 2.
    #[must_use]
    pub fn parse(usage: &str, values: &[&str], flags: &[&str]) -> Self {
        let mut args = Args::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--") else {
                args.words.push(word);
                continue;
            };
            if name == "help" {
                print!("{usage}");
                std::process::exit(0);
            }
            let (name, given) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let value = if flags.contains(&name) && given.is_none() {
                String::from("yes")
            } else if values.contains(&name) {
                match given.or_else(|| words.next()) {
                    Some(value) => value,
                    None => fail(usage, &format!("--{name} needs a value")),
                }
            } else {
                fail(usage, &format!("unknown option {word}"))
            };
            args.options.insert(name.to_owned(), value);
        }
        args
    }

    /// The value of option `name`, if given; exits with status 2 when it does not parse.
    #[must_use]
    pub fn get<T: FromStr>(&self, name: &str) -> Option<T> {
        let text = self.options.get(name)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            eprintln!("--{name}: {text:?} is not valid");
            std::process::exit(2);
        }
        parsed
    }

    /// Whether flag `name` was given.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    /// The positional words.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }
}

fn fail(usage: &str, message: &str) -> ! {
    eprintln!("{message}\n\n{usage}");
    std::process::exit(2);
}
