//! Who sends a request: the header `Authorization`, and the names of this server in `Host`.
//!
//! | header | user, password |
//! |---|---|
//! | `Basic` base64 of `user:password` | these; an empty user is `default` |
//! | `Bearer user:password` | these |
//! | `Bearer password` | `default`, and this password |
//!
//! A page in a browser can send requests to this server, under a name that its author made to stand for an
//! address of the server (DNS rebinding). It knows no credentials, so it could read only what a server
//! without any password shows. Therefore a request without credentials has to name the server by an address,
//! by `localhost`, or by a name in `http-hosts`: names that no stranger chooses.

#[cfg(fuzzing)]
pub(crate) mod fuzzing;

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST};

/// A user's name and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: Vec<u8>,
    pub password: Vec<u8>,
}

const DEFAULT_USER: &[u8] = b"default";

impl Credentials {
    /// Reads `user:password`, or the password of the default user.
    pub(crate) fn from_token(token: &[u8]) -> Credentials {
        let (user, password) = split_at(token, b':').unwrap_or((DEFAULT_USER, token));
        Credentials { user: user.to_vec(), password: password.to_vec() }
    }

    /// Reads the header. An error is the text of the reply.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Option<Credentials>, &'static str> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err("There is more than one header 'Authorization'.");
        }
        let (scheme, rest) = split_at(value.as_bytes(), b' ').unwrap_or((value.as_bytes(), b""));
        let rest = rest.trim_ascii();
        let pair = if scheme.eq_ignore_ascii_case(b"basic") {
            let decoded = STANDARD.decode(rest).map_err(|_| "The credentials are not valid base64.")?;
            let (user, password) =
                split_at(&decoded, b':').ok_or("The credentials have no ':' between user and password.")?;
            let user = if user.is_empty() { DEFAULT_USER } else { user };
            (user.to_vec(), password.to_vec())
        } else if scheme.eq_ignore_ascii_case(b"bearer") {
            return Ok(Some(Credentials::from_token(rest)));
        } else {
            return Err("'Authorization' has to be 'Basic' or 'Bearer'.");
        };
        Ok(Some(Credentials { user: pair.0, password: pair.1 }))
    }
}

fn split_at(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == separator)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Whether the request names the server by an address, by `localhost`, or by one of the names in `own`, which
/// are separated by spaces. HTTP/2 has the name in the URI, HTTP/1.1 in `Host`.
pub(crate) fn has_own_name(uri: &hyper::Uri, headers: &HeaderMap, own: &[u8]) -> bool {
    let from_header = || headers.get(HOST).and_then(|host| host.to_str().ok());
    let Some(authority) = uri.authority().map(|authority| authority.as_str()).or_else(from_header) else {
        return false;
    };
    let name = without_port(authority);
    let is_own = |own: &[u8]| own.eq_ignore_ascii_case(name.as_bytes());
    name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || is_own(b"localhost")
        || own.split(u8::is_ascii_whitespace).any(|own| !own.is_empty() && is_own(own))
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Uri;
    use hyper::header::HeaderValue;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn read(header: &[u8]) -> Result<Option<(String, String)>, &'static str> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_bytes(header).expect("a header"));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let read = Credentials::from_headers(&headers)?;
        Ok(read.map(|credentials| (text(credentials.user), text(credentials.password))))
    }

    #[test]
    fn forms_of_authorization() {
        let is = |user: &str, password: &str| Ok(Some((user.to_owned(), password.to_owned())));
        assert_eq!(read(format!("Basic {}", STANDARD.encode("ann:a:b")).as_bytes()), is("ann", "a:b"));
        assert_eq!(read(format!("basic  {}", STANDARD.encode(":pw")).as_bytes()), is("default", "pw"));
        assert_eq!(read(b"Bearer ann:pw:x"), is("ann", "pw:x"));
        assert_eq!(read(b"BEARER token "), is("default", "token"));
        assert_eq!(read(b"Bearer"), is("default", ""));
        assert!(read(b"Basic %%%").is_err());
        assert!(read(format!("Basic {}", STANDARD.encode("no colon")).as_bytes()).is_err());
        assert!(read(b"Digest x").is_err());
        assert!(read(b"").is_err());
        assert!(Credentials::from_headers(&HeaderMap::new()).is_ok_and(|none| none.is_none()));
    }

    #[test]
    fn two_headers_are_refused() {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer a"));
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        assert!(Credentials::from_headers(&headers).is_err());
    }

    #[test]
    fn names_of_the_server() {
        let own = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_str(host).expect("a header"));
            has_own_name(&Uri::from_static("/"), &headers, b"store.example  Other")
        };
        for host in
            ["127.0.0.1:8379", "[::1]:8379", "[::1]", "localhost", "LOCALHOST:1", "store.example:80", "other"]
        {
            assert!(own(host), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "store.example.", ":80"]
        {
            assert!(!own(host), "{host}");
        }
        assert!(has_own_name(&Uri::from_static("https://127.0.0.1/"), &HeaderMap::new(), b""));
        assert!(!has_own_name(&Uri::from_static("https://evil.example/"), &HeaderMap::new(), b""));
        assert!(!has_own_name(&Uri::from_static("/"), &HeaderMap::new(), b""));
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(
            scheme in "(Basic|Bearer|[a-zA-Z]{0,6}) {0,2}",
            rest in vec(any::<u8>(), 0..40),
        ) {
            let header = [scheme.as_bytes(), &rest].concat();
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&header) {
                headers.insert(AUTHORIZATION, value.clone());
                headers.insert(HOST, value);
            }
            let _ = Credentials::from_headers(&headers);
            let _ = has_own_name(&Uri::from_static("/"), &headers, &rest);
        }

        #[test]
        fn basic_credentials_are_read_as_they_were_written(
            user in vec(any::<u8>().prop_filter("a colon ends it", |byte| *byte != b':'), 1..20),
            password in vec(any::<u8>(), 0..20),
        ) {
            let pair = [&user[..], b":", &password].concat();
            let mut headers = HeaderMap::new();
            let header = format!("Basic {}", STANDARD.encode(pair));
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&header).expect("a header"));
            let read = Credentials::from_headers(&headers).expect("well-formed").expect("some");
            prop_assert_eq!((read.user, read.password), (user, password));
        }
    }
}
