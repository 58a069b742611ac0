// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Access control of the server.
//!
//! The printed address contains a token. The response to the first request with the token sets a cookie and redirects
//! to the address without it, so that the token stays out of the browser's history. A program may send the token in a
//! header instead.
//!
//! Pages of other sites in the same browser get no access: their requests do not carry the cookie, they may not read
//! responses, and a request under another host name that leads to this address is refused.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::http::Request;

/// Number of random bytes in a token.
const TOKEN: usize = 16;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request names a host that is not this server.
    Host,
    /// The request comes from a page of another site.
    Origin,
    /// The request has no token, or a wrong one.
    Token,
}

impl Refusal {
    /// Returns the explanation for the client.
    pub fn text(self) -> &'static str {
        match self {
            Self::Host => {
                "This server answers only requests to the address that vrnicctl web printed."
            }
            Self::Origin => "This server answers only its own page.",
            Self::Token => {
                "Open the whole address that vrnicctl web printed, with its token. It changes when vrnicctl web starts \
                 again."
            }
        }
    }

    /// Returns the status of the response.
    pub fn status(self) -> u16 {
        match self {
            Self::Host => 421,
            Self::Origin => 403,
            Self::Token => 401,
        }
    }
}

/// The token and the names of the server.
#[derive(Debug)]
pub struct Access {
    token: String,
    /// Valid values of the `Host` field of a request.
    hosts: Vec<String>,
    cookie: String,
}

impl Access {
    /// Creates a token for a server at that address.
    pub fn new(address: SocketAddr) -> Result<Self> {
        let mut bytes = [0; TOKEN];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .context("no random numbers for a token")?;
        let token = bytes.map(|byte| format!("{byte:02x}")).concat();
        let mut hosts = vec![address.to_string()];
        if address.ip().is_loopback() {
            hosts.push(format!("localhost:{}", address.port()));
        }
        Ok(Self {
            token,
            hosts,
            // Cookies do not depend on the port, and several servers may be running.
            cookie: format!("vrnic-{}", address.port()),
        })
    }

    /// Returns the token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns the field that sets the token as a cookie.
    pub fn set_cookie(&self) -> String {
        format!(
            "{}={}; Path=/; HttpOnly; SameSite=Strict",
            self.cookie, self.token
        )
    }

    /// Returns whether the query contains the right token.
    pub fn is_invited(&self, request: &Request) -> bool {
        request
            .parameter("token")
            .is_some_and(|token| self.is_token(token))
    }

    /// Checks whether a request may be answered.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        self.check_host(request)?;
        let bearer = request
            .header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "));
        let known = bearer.is_some_and(|token| self.is_token(token))
            || request
                .cookies()
                .any(|(name, token)| name == self.cookie && self.is_token(token))
            || self.is_invited(request);
        if known { Ok(()) } else { Err(Refusal::Token) }
    }

    fn check_host(&self, request: &Request) -> Result<(), Refusal> {
        let is_own = |host: &str| self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host));
        if !request.header("host").is_some_and(is_own) {
            return Err(Refusal::Host);
        }
        let origin = request.header("origin");
        let foreign =
            origin.is_some_and(|origin| !origin.strip_prefix("http://").is_some_and(is_own));
        let site = request.header("sec-fetch-site");
        // `none` means that the user typed the address.
        if foreign
            || site.is_some_and(|site| !matches!(site, "same-origin" | "none"))
                && !self.is_invited(request)
        {
            return Err(Refusal::Origin);
        }
        Ok(())
    }

    /// Compares in a time that is the same for all wrong tokens of the right length.
    fn is_token(&self, token: &str) -> bool {
        let pairs = token.bytes().zip(self.token.bytes());
        token.len() == self.token.len() && pairs.fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access::new("127.0.0.1:7000".parse().unwrap()).unwrap()
    }

    fn request(target: &str, fields: &[(&str, &str)]) -> Request {
        let fields = fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Request::new("GET", target, fields.collect(), Vec::new())
    }

    #[test]
    fn tokens_differ_and_are_long() {
        let (one, other) = (access(), access());
        assert_ne!(one.token(), other.token());
        assert_eq!(one.token().len(), 2 * TOKEN);
    }

    #[test]
    fn only_the_right_token_is_let_in() {
        let access = access();
        let host = ("host", "127.0.0.1:7000");
        let bearer = format!("Bearer {}", access.token());
        let cookie = format!("other=1; vrnic-7000={}", access.token());
        let query = format!("/?token={}", access.token());
        assert_eq!(
            access.check(&request("/", &[host, ("authorization", &bearer)])),
            Ok(())
        );
        assert_eq!(
            access.check(&request("/", &[host, ("cookie", &cookie)])),
            Ok(())
        );
        assert_eq!(access.check(&request(&query, &[host])), Ok(()));
        let wrong = format!("Bearer {}", "0".repeat(2 * TOKEN));
        let stranger = format!("vrnic-7001={}", access.token());
        let refused = Err(Refusal::Token);
        assert_eq!(access.check(&request("/", &[host])), refused);
        assert_eq!(access.check(&request("/?token=", &[host])), refused);
        assert_eq!(
            access.check(&request("/", &[host, ("authorization", &wrong)])),
            refused
        );
        assert_eq!(
            access.check(&request("/", &[host, ("cookie", &stranger)])),
            refused
        );
    }

    #[test]
    fn other_names_and_other_sites_are_refused_even_with_the_token() {
        let access = access();
        let bearer = format!("Bearer {}", access.token());
        let token = ("authorization", bearer.as_str());
        let ask = |fields: &[(&str, &str)]| access.check(&request("/api/state", fields));
        assert_eq!(ask(&[token, ("host", "localhost:7000")]), Ok(()));
        for host in [
            "evil.example",
            "evil.example:7000",
            "127.0.0.1",
            "127.0.0.1:7001",
            "",
        ] {
            assert_eq!(ask(&[token, ("host", host)]), Err(Refusal::Host), "{host}");
        }
        assert_eq!(ask(&[token]), Err(Refusal::Host));
        let host = ("host", "127.0.0.1:7000");
        assert_eq!(
            ask(&[token, host, ("origin", "http://127.0.0.1:7000")]),
            Ok(())
        );
        for origin in [
            "null",
            "http://evil.example",
            "https://127.0.0.1:7000",
            "http://127.0.0.1:7001",
        ] {
            assert_eq!(
                ask(&[token, host, ("origin", origin)]),
                Err(Refusal::Origin),
                "{origin}"
            );
        }
        assert_eq!(
            ask(&[token, host, ("sec-fetch-site", "same-site")]),
            Err(Refusal::Origin)
        );
    }
}
