// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! HTTP 1.1 requests and responses; each connection carries one of each.

use std::io::{self, Read, Write};

/// Largest size of a request's head in bytes.
pub const MAX_HEAD: usize = 16 << 10;
/// Largest size of a request's body in bytes.
pub const MAX_BODY: usize = 64 << 20;
/// Largest number of fields in a head.
const MAX_FIELDS: usize = 64;

/// Fields of every response: responses are not cached, the page loads nothing from elsewhere, strings cannot become
/// markup, and no other site may use them.
const FIELDS: &str = "Cache-Control: no-store\r\n\
    Connection: close\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'\r\n\
    Cross-Origin-Opener-Policy: same-origin\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n\
    X-Content-Type-Options: nosniff\r\n";

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    method: String,
    target: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

/// Why a request could not be read.
#[derive(Debug)]
pub enum Bad {
    /// The connection failed, or no data came.
    Gone(io::Error),
    /// The request violates a rule or a limit: the status and text of the response.
    Refused(u16, &'static str),
}

impl From<io::Error> for Bad {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl Request {
    /// Creates a request.
    pub fn new(method: &str, target: &str, fields: Vec<(String, String)>, body: Vec<u8>) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            fields,
            body,
        }
    }

    /// Reads a request.
    ///
    /// # Errors
    /// No request came, or it is refused.
    pub fn read(input: &mut impl Read) -> Result<Self, Bad> {
        let mut bytes = Vec::new();
        let (mut request, behind) = loop {
            let mut chunk = [0; 4096];
            let count = input.read(&mut chunk)?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            bytes.extend_from_slice(&chunk[..count]);
            if let Some(found) = parse(&bytes)? {
                break found;
            }
            if bytes.len() > MAX_HEAD {
                return Err(Bad::Refused(431, "The head of the request is too long."));
            }
        };
        if request.header("transfer-encoding").is_some() {
            return Err(Bad::Refused(411, "The request must say how long it is."));
        }
        let lengths = request
            .fields
            .iter()
            .filter(|(name, _)| name == "content-length");
        let length = match lengths.map(|(_, value)| value.as_str()).collect::<Vec<_>>()[..] {
            [] => 0,
            [digits] if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().unwrap_or(usize::MAX)
            }
            _ => {
                return Err(Bad::Refused(
                    400,
                    "The length of the request is not a number.",
                ));
            }
        };
        if length > MAX_BODY {
            return Err(Bad::Refused(
                413,
                "The file is too long: 64 MiB is the limit.",
            ));
        }
        request.body = bytes.split_off(behind);
        if request.body.len() > length {
            return Err(Bad::Refused(400, "The request is longer than it says."));
        }
        let missing = length - request.body.len();
        // Memory grows with the received data, not with the announced length.
        if input.take(missing as u64).read_to_end(&mut request.body)? < missing {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(request)
    }

    /// Returns `GET` or `POST`.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Returns the path, without the query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// Returns a field of the head; `name` is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns a parameter of the query without decoding it; the page uses no encoded ones.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// Returns all cookies.
    pub fn cookies(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.fields.iter().filter(|(name, _)| name == "cookie");
        let pairs = lines.flat_map(|(_, line)| line.split(';'));
        pairs.filter_map(|pair| pair.trim().split_once('='))
    }
}

/// Parses the head of a request, and returns the request and the offset of its body. Returns `None` if the head is
/// incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Bad> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Bad::Refused(431, "The request has too many fields."));
        }
        Err(_) => return Err(Bad::Refused(400, "This is not an HTTP/1.1 request.")),
    };
    let fields = head.headers.iter().map(|field| {
        let value = std::str::from_utf8(field.value).unwrap_or_default();
        (field.name.to_ascii_lowercase(), value.trim().to_owned())
    });
    let fields = fields.collect();
    let (method, target) = (
        head.method.unwrap_or_default(),
        head.path.unwrap_or_default(),
    );
    Ok(Some((
        Request::new(method, target, fields, Vec::new()),
        length,
    )))
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    status: u16,
    fields: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Response {
    /// Creates a response with a file or similar content.
    pub fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            fields: vec![("Content-Type", kind.to_owned())],
            body: body.into(),
        }
    }

    /// Creates a response with a sentence for the user.
    pub fn text(status: u16, text: &str) -> Self {
        Self {
            status,
            ..Self::new("text/plain; charset=utf-8", format!("{text}\n"))
        }
    }

    /// Creates a JSON response.
    pub fn json(value: &serde_json::Value) -> Self {
        Self::new("application/json", value.to_string())
    }

    /// Creates a redirect to another path of this server.
    pub fn see_other(path: &str) -> Self {
        Self::text(303, "").with("Location", path.to_owned())
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.fields.push((name, value));
        self
    }

    /// Sends the response.
    pub fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let length = format!("Content-Length: {}\r\n", self.body.len());
        self.write_head(&length, output)?;
        output.write_all(&self.body)?;
        output.flush()
    }

    /// Sends everything except the body. The body follows, and its end is that of the connection.
    pub fn begin(&self, output: &mut impl Write) -> io::Result<()> {
        self.write_head("", output)
    }

    fn write_head(&self, length: &str, output: &mut impl Write) -> io::Result<()> {
        let mut head = format!(
            "HTTP/1.1 {} {}\r\n{FIELDS}{length}",
            self.status,
            reason(self.status)
        );
        for (name, value) in &self.fields {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head.push_str("\r\n");
        output.write_all(head.as_bytes())?;
        output.flush()
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        303 => "See Other",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        411 => "Length Required",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Request, Bad> {
        Request::read(&mut &bytes[..])
    }

    fn status(bytes: &[u8]) -> u16 {
        match read(bytes) {
            Err(Bad::Refused(status, _)) => status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_read_in_pieces() {
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let count = self.0.len().min(3);
                self.0.read(&mut buffer[..count])
            }
        }
        let bytes = b"POST /api/x?a=1&token=2 HTTP/1.1\r\nHost: h\r\nCookie: a=b; c=d\r\ncontent-length: 5\r\n\r\nhello";
        let request = Request::read(&mut Slow(bytes)).unwrap();
        assert_eq!((request.method(), request.path()), ("POST", "/api/x"));
        assert_eq!(request.header("host"), Some("h"));
        assert_eq!(request.parameter("token"), Some("2"));
        assert_eq!(
            request.cookies().collect::<Vec<_>>(),
            [("a", "b"), ("c", "d")]
        );
        assert_eq!(request.body(), b"hello");
    }

    #[test]
    fn what_breaks_the_rules_or_a_limit_is_refused() {
        assert_eq!(status(b"\x16\x03\x01 TLS\r\n\r\n"), 400);
        assert_eq!(
            status(b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"),
            411
        );
        assert_eq!(status(b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), 400);
        assert_eq!(
            status(b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            400
        );
        assert_eq!(
            status(b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"),
            413
        );
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\nmore"), 400);
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(MAX_HEAD));
        assert_eq!(status(long.as_bytes()), 431);
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(MAX_FIELDS + 1)
        );
        assert_eq!(status(many.as_bytes()), 431);
        for bytes in [
            &b""[..],
            b"GET / HT",
            b"GET / HTTP/1.1\r\nContent-Length: 2\r\n\r\n1",
        ] {
            assert!(matches!(read(bytes), Err(Bad::Gone(_))));
        }
    }

    #[test]
    fn a_response_forbids_what_the_page_does_not_need() {
        let mut bytes = Vec::new();
        Response::text(404, "no").write(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("HTTP/1.1 404 Not Found\r\n"), "{text}");
        assert!(
            text.ends_with(
                "Content-Length: 3\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nno\n"
            )
        );
        assert!(
            text.contains("default-src 'none'") && !text.contains("unsafe"),
            "{text}"
        );
        assert!(!text.contains("Access-Control"), "{text}");
    }
}
