// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Headless Chromium, controlled through its debugging pipe.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long any action may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page.
pub struct Browser {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last: u64,
    errors: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    pub fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        // Without its sandbox: it displays only our own page, and the sandbox does not work for root, who may run the
        // tests. The pipe's descriptors are 3 and 4; a shell puts them there.
        let script = r#"exec chromium "$@" 3<&0 4>&1 </dev/null >/dev/null"#;
        let mut process = Command::new("sh")
            .args([
                "-c",
                script,
                "sh",
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
            ])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
            ])
            .args(["--force-device-scale-factor=1", "--window-size=1280,900"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = process.stdout.take().unwrap();
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else {
                    return;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            process,
            input,
            messages,
            session: None,
            last: 0,
            errors: Vec::new(),
            _profile: profile,
        };
        let target =
            browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"]
                .clone();
        let attached = browser.call(
            "Target.attachToTarget",
            json!({ "targetId": target, "flatten": true }),
        );
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1280, 900);
        browser
    }

    /// Calls a method of the debugging protocol.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let sent = self.input.write_all(format!("{message}\0").as_bytes());
        sent.expect(
            "Chromium does not run: install it with `make setup-tests` (the package is chromium)",
        );
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = self.messages.recv_timeout(left);
            let mut message = message.unwrap_or_else(|error| {
                panic!("{method}: {error}: is the package chromium installed? `make setup-tests` does it")
            });
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.errors.push(parameters["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                self.errors.push(parameters["entry"].to_string());
            }
            Some("Runtime.consoleAPICalled") if parameters["type"] == "error" => {
                self.errors.push(parameters["args"].to_string());
            }
            _ => {}
        }
    }

    /// Returns the errors that the page has reported.
    pub fn errors(&mut self) -> Vec<String> {
        self.value("1");
        std::mem::take(&mut self.errors)
    }

    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// Returns the value of an expression.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", parameters);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        let test =
            format!("(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()");
        while self.value(&test) != json!(true) {
            if Instant::now() > deadline {
                let text = self.value("document.body.innerText");
                panic!("never true: {expression}\n{text}\n{:?}", self.errors);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Presses a key.
    pub fn key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key, "text": if kind == "keyDown" { key } else { "" } }));
        }
    }

    /// Selects dark or light colours.
    pub fn dark(&mut self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }, { "name": "prefers-reduced-motion", "value": "reduce" }]);
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    pub fn size(&mut self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Returns a PNG picture of the page, without the empty part at the bottom.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let bottom = "Math.min(Math.ceil(document.querySelector('main').getBoundingClientRect().bottom), innerHeight)";
        let (width, height) = (self.value("innerWidth"), self.value(bottom));
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let shot = self.call(
            "Page.captureScreenshot",
            json!({ "format": "png", "clip": clip }),
        );
        base64(shot["data"].as_str().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self
            .input
            .write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let deadline = Instant::now() + Duration::from_secs(10);
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for digit in text.bytes() {
        let Some(value) = DIGITS.iter().position(|known| *known == digit) else {
            continue;
        };
        bits = bits << 6 | u32::try_from(value).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).unwrap());
        }
    }
    bytes
}
