// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The out-of-band connection between the two ends of a test: framed messages over TCP, or over a socket pair when
//! both ends live in one process.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Largest accepted frame; anything longer is not ours.
const MAX_FRAME: usize = 1 << 20;

trait Stream: Read + Write + AsRawFd + Send {}
impl<T: Read + Write + AsRawFd + Send> Stream for T {}

/// One end of the connection.
pub struct Control {
    stream: Box<dyn Stream>,
    received: Vec<u8>,
}

impl Control {
    /// Opens `port` for peers.
    pub fn listener(port: u16) -> io::Result<Listener> {
        Ok(Listener(TcpListener::bind(("0.0.0.0", port))?))
    }

    /// Connects to `host:port`, trying for `patience` while nobody listens there yet.
    pub fn connect(host: &str, port: u16, patience: Duration) -> io::Result<Self> {
        let end = Instant::now() + patience;
        loop {
            match TcpStream::connect((host, port)) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Self::over(stream));
                }
                Err(e) if Instant::now() > end => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Both ends in one process.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = UnixStream::pair()?;
        Ok((Self::over(a), Self::over(b)))
    }

    fn over(stream: impl Read + Write + AsRawFd + Send + 'static) -> Self {
        Control {
            stream: Box::new(stream),
            received: Vec::new(),
        }
    }

    /// Descriptor to wait on for [`Control::try_receive`].
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Sends one message.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(4 + message.len());
        frame.extend_from_slice(&(message.len() as u32).to_le_bytes());
        frame.extend_from_slice(message);
        self.stream.write_all(&frame)
    }

    fn take_frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(head) = self.received.first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*head) as usize;
        if len > MAX_FRAME {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "control frame too long",
            ));
        }
        if self.received.len() < 4 + len {
            return Ok(None);
        }
        let frame = self.received[4..4 + len].to_vec();
        self.received.drain(..4 + len);
        Ok(Some(frame))
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.received.extend_from_slice(&chunk[..n]);
                Ok(())
            }
        }
    }

    /// The next message; waits for it.
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(frame);
            }
            self.fill()?;
        }
    }

    /// The next message if one has arrived.
    pub fn try_receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            if !wait_readable(&[self.fd()], Duration::ZERO)? {
                return Ok(None);
            }
            self.fill()?;
        }
    }

    /// Both ends send `message` and get the other's.
    pub fn swap(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        self.send(message)?;
        self.receive()
    }

    /// Sends `key=value` words and receives the peer's.
    pub fn swap_words(&mut self, words: &Words) -> io::Result<Words> {
        let theirs = self.swap(words.0.join(" ").as_bytes())?;
        Ok(Words(
            String::from_utf8_lossy(&theirs)
                .split(' ')
                .map(str::to_owned)
                .collect(),
        ))
    }
}

/// A port on which peers connect.
pub struct Listener(TcpListener);

impl Listener {
    /// Waits for the next peer.
    pub fn accept(&mut self) -> io::Result<Control> {
        let (stream, _) = self.0.accept()?;
        stream.set_nodelay(true)?;
        Ok(Control::over(stream))
    }
}

/// A message of `key=value` words.
#[derive(Debug, Default, Clone)]
pub struct Words(Vec<String>);

impl Words {
    /// The words as one line.
    #[must_use]
    pub fn text_line(&self) -> String {
        self.0.join(" ")
    }

    /// The words of a line.
    #[must_use]
    pub fn parse(line: &[u8]) -> Self {
        Words(
            String::from_utf8_lossy(line)
                .split(' ')
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Adds a word; the value must hold no blank.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.0.push(format!("{key}={value}"));
        self
    }

    /// The value of `key` as a number.
    pub fn number(&self, key: &str) -> io::Result<u64> {
        self.text(key)?
            .parse()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("bad word {key}")))
    }

    /// The value of `key`.
    pub fn text(&self, key: &str) -> io::Result<&str> {
        self.0
            .iter()
            .find_map(|w| w.split_once('=').filter(|(k, _)| *k == key).map(|(_, v)| v))
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("the peer did not send {key}"),
                )
            })
    }
}

/// Waits until one of `fds` is readable; false after `timeout`.
pub fn wait_readable(fds: &[RawFd], timeout: Duration) -> io::Result<bool> {
    crate::verbs::poll_fds(fds, timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_split() {
        let (mut a, mut b) = Control::pair().unwrap();
        assert!(b.try_receive().unwrap().is_none());
        a.send(b"one").unwrap();
        a.send(&[7; 5000]).unwrap();
        assert_eq!(b.receive().unwrap(), b"one");
        assert_eq!(b.receive().unwrap(), [7; 5000]);
        let words = Words::default().with("qpn", 17).with("gid", "fe80::1");
        let thread =
            std::thread::spawn(move || b.swap_words(&Words::default().with("x", 1)).unwrap());
        assert_eq!(a.swap_words(&words).unwrap().number("x").unwrap(), 1);
        let theirs = thread.join().unwrap();
        assert_eq!(theirs.number("qpn").unwrap(), 17);
        assert_eq!(theirs.text("gid").unwrap(), "fe80::1");
        assert!(theirs.text("none").is_err());
        drop(a);
    }
}
