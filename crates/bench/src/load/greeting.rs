//! The greeting that a connection sends before its first request: HELLO 3, credentials, and the database.
//!
//! The greeting goes out in one piece, and its replies are checked, unlike replies to requests: after an
//! error, the following requests would not measure the requested load.

use std::fmt;

use anyhow::{Result, bail};

use super::endpoint::Protocol;
use super::replies::Skipper;

/// The credentials of the connections, and the database with their keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Login {
    /// `None`: the server's default user.
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Password>,
    /// `None`: the server's first database.
    pub(crate) database: Option<u32>,
}

/// Never shown.
#[derive(Clone)]
pub(crate) struct Password(String);

impl From<String> for Password {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Login {
    pub(super) fn check(&self, protocol: Protocol) -> Result<()> {
        if self.user.is_some() && self.password.is_none() {
            bail!("a user needs a password");
        }
        if protocol == Protocol::Http && (self.password.is_some() || self.database.is_some()) {
            bail!("http is sent paths only: no password and no database");
        }
        if protocol == Protocol::Memcached {
            if self.password.is_some() {
                bail!("memcached is told no password");
            }
            if self.database.is_some() {
                bail!("memcached has no databases to choose from");
            }
        }
        Ok(())
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Greeting {
    bytes: Vec<u8>,
    /// Its commands, in words that can be shown.
    commands: Vec<String>,
}

impl Greeting {
    pub(super) fn new(protocol: Protocol, login: &Login) -> Self {
        let mut greeting = Self::default();
        let (user, password) = (&login.user, login.password.as_ref().map(|password| &password.0[..]));
        match (protocol, user, password) {
            (Protocol::Resp3, _, None) => greeting.add_command("HELLO 3", &[]),
            (Protocol::Resp3, user, Some(password)) => {
                greeting.add_command("HELLO 3 AUTH", &[user.as_deref().unwrap_or("default"), password]);
            }
            (_, Some(user), Some(password)) => greeting.add_command("AUTH", &[user, password]),
            (_, None, Some(password)) => greeting.add_command("AUTH", &[password]),
            (_, _, None) => {}
        }
        if let Some(database) = login.database {
            greeting.add_command(&format!("SELECT {database}"), &[]);
        }
        greeting
    }

    /// `rest` is not shown.
    fn add_command(&mut self, shown: &str, rest: &[&str]) {
        let words: Vec<&str> = shown.split(' ').chain(rest.iter().copied()).collect();
        self.bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        self.commands.push(shown.to_owned());
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns a reader for the replies of a connection.
    pub(super) fn answers(&self) -> Answers {
        Answers { skipper: Skipper::new(), answered: 0, awaited: self.commands.len(), is_error: false }
    }
}

impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.commands.join(" and "))
    }
}

/// The replies to a greeting, as they come.
#[derive(Debug)]
pub(super) struct Answers {
    skipper: Skipper,
    answered: usize,
    /// `answered <= awaited`
    awaited: usize,
    /// The current reply is an error.
    is_error: bool,
}

/// The server's error reply to a part of the greeting.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) command: String,
    pub(super) text: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server refuses {}: {}", self.command, self.text)
    }
}

impl Answers {
    pub(super) fn are_complete(&self) -> bool {
        self.answered == self.awaited
    }

    /// Takes replies to the greeting from `bytes`, up to the first refusal. Fails if they are not RESP.
    pub(super) fn take(&mut self, greeting: &Greeting, bytes: &mut &[u8]) -> Result<Option<Refusal>> {
        while !self.are_complete()
            && let [byte, rest @ ..] = *bytes
        {
            *bytes = rest;
            let counts = self.skipper.feed(std::slice::from_ref(byte))?;
            self.is_error |= counts.errors > 0;
            if counts.replies == 0 {
                continue;
            }
            if self.is_error {
                let (command, text) = (greeting.commands[self.answered].clone(), self.skipper.error_text());
                return Ok(Some(Refusal { command, text }));
            }
            self.answered += 1;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: Option<&str>, password: Option<&str>, database: Option<u32>) -> Login {
        let password = password.map(|text| Password(text.to_owned()));
        Login { user: user.map(str::to_owned), password, database }
    }

    /// Returns the words of all commands.
    fn said(protocol: Protocol, login: &Login) -> String {
        let greeting = Greeting::new(protocol, login);
        let text = String::from_utf8(greeting.bytes).expect("ASCII");
        text.lines().filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_greeting_has_login_and_database() {
        let (resp2, resp3) = (Protocol::Resp2, Protocol::Resp3);
        assert_eq!(said(resp2, &login(None, None, None)), "");
        assert_eq!(said(resp2, &login(None, Some("x"), None)), "AUTH x");
        assert_eq!(said(resp2, &login(Some("me"), Some("x"), Some(3))), "AUTH me x SELECT 3");
        assert_eq!(said(resp3, &login(None, None, Some(0))), "HELLO 3 SELECT 0");
        assert_eq!(said(resp3, &login(None, Some("x"), None)), "HELLO 3 AUTH default x");
        assert_eq!(said(resp3, &login(Some("me"), Some("x"), Some(3))), "HELLO 3 AUTH me x SELECT 3");
        let greeting = Greeting::new(resp2, &login(None, Some("x y"), None));
        assert_eq!(greeting.bytes(), b"*2\r\n$4\r\nAUTH\r\n$3\r\nx y\r\n");
    }

    #[test]
    fn contradictory_options_are_refused() {
        let (resp2, memcached) = (Protocol::Resp2, Protocol::Memcached);
        assert!(login(None, None, None).check(memcached).is_ok());
        assert!(login(Some("me"), Some("x"), Some(1)).check(resp2).is_ok());
        assert!(login(Some("me"), None, None).check(resp2).is_err());
        assert!(login(None, Some("x"), None).check(memcached).is_err());
        assert!(login(None, None, Some(1)).check(memcached).is_err());
    }

    #[test]
    fn a_password_is_never_shown() {
        let login = login(Some("me"), Some("hush"), Some(1));
        let greeting = Greeting::new(Protocol::Resp3, &login);
        assert_eq!(greeting.to_string(), "HELLO 3 AUTH and SELECT 1");
        assert!(!format!("{login:?}").contains("hush"));
    }

    /// Returns the part of `stream` after the greeting, and the refusal, if any.
    fn answered(stream: &[u8], pieces: usize) -> (Vec<u8>, Option<String>) {
        let greeting = Greeting::new(Protocol::Resp3, &login(None, Some("x"), Some(3)));
        let (mut answers, mut left) = (greeting.answers(), Vec::new());
        for mut piece in stream.chunks(pieces) {
            if let Some(refusal) = answers.take(&greeting, &mut piece).expect("RESP") {
                return (left, Some(refusal.to_string()));
            }
            left.extend_from_slice(piece);
        }
        assert!(answers.are_complete());
        (left, None)
    }

    #[test]
    fn replies_to_the_greeting_end_before_replies_to_requests() {
        for pieces in [1, 7, 100] {
            let (left, refusal) = answered(b"%1\r\n+proto\r\n:3\r\n+OK\r\n$1\r\nv\r\n", pieces);
            assert_eq!((&left[..], refusal), (&b"$1\r\nv\r\n"[..], None));
            let (_, refusal) = answered(b"-WRONGPASS no\r\n-NOAUTH\r\n", pieces);
            assert_eq!(refusal.as_deref(), Some("the server refuses HELLO 3 AUTH: WRONGPASS no"));
            let (_, refusal) = answered(b"%0\r\n-ERR DB index is out of range\r\n", pieces);
            assert_eq!(refusal.as_deref(), Some("the server refuses SELECT 3: ERR DB index is out of range"));
        }
    }
}
