// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Shows a lab's RNICs in a browser, like `vrnicctl web`: read-only, for users who know the printed address. It queries
//! vrnicd only while a page is open.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use vrnic_web::{Options, Server};

/// Addresses by control socket. A vrnicd that is restarted has the same socket, and so the same address.
static SERVED: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

/// Returns the address of the view of the vrnicd with this control socket. The view is served from now on, until this
/// process ends.
///
/// # Errors
/// There is no vrnicd, or no free port.
pub fn address(control: &Path) -> Result<String> {
    let mut served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(address) = served.get(control) {
        return Ok(address.clone());
    }
    let server = Server::bind(Options {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        socket: control.to_owned(),
        allow_actions: false,
    })?;
    let address = server.url();
    std::thread::Builder::new()
        .name("web".into())
        .spawn(move || server.run())?;
    served.insert(control.to_owned(), address.clone());
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use vrnic_native::daemon::{Daemon, Fabric};

    /// Returns the answer of the server at an address.
    fn ask(address: &str, method: &str, target: &str, token: &str) -> String {
        let host = address.trim_start_matches("http://").split('/').next();
        let host = host.expect("a host");
        let mut stream = TcpStream::connect(host).expect("it listens");
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    #[test]
    fn a_lab_is_shown_to_those_who_have_its_address() {
        let test = std::env::current_exe().expect("a path");
        let program = test.ancestors().nth(2).expect("a directory").join("vrnicd");
        assert!(
            program.exists(),
            "{} is missing: build vrnicd",
            program.display()
        );
        let mut daemon = Daemon::start(&program, Fabric::Local, 1).expect("vrnicd");
        drop(daemon.connect(0).expect("it listens"));
        let served = address(&daemon.control()).expect("an address");
        assert!(served.starts_with("http://127.0.0.1:"), "{served}");
        assert_eq!(address(&daemon.control()).expect("the same"), served);
        let token = served.split_once("token=").expect("a token").1;
        assert!(ask(&served, "GET", "/", token).starts_with("HTTP/1.1 200"));
        let wrong = "0".repeat(token.len());
        assert!(ask(&served, "GET", "/", &wrong).starts_with("HTTP/1.1 401"));
        let act = ask(&served, "POST", "/api/action", token);
        assert!(
            act.starts_with("HTTP/1.1 403") && act.contains("read-only"),
            "{act}"
        );
        assert!(address(Path::new("/nonexistent")).is_err());
    }
}
