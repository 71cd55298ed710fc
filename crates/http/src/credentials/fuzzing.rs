//! Checks for the fuzz targets (folder `fuzz` of the repository).

use hyper::Uri;
use hyper::header::HeaderValue;

use super::*;

/// Checks that a header has one reading: written again from the user and password, it has the same.
pub fn authorization(header: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(header) else { return };
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, value);
    let Ok(credentials) = Credentials::from_headers(&headers) else { return };
    let credentials = credentials.expect("there is a header");
    assert!(credentials.user.len() + credentials.password.len() <= header.len() + DEFAULT_USER.len());
    assert!(!credentials.user.contains(&b':'), "the first colon ends the user");
    let pair = [&credentials.user[..], b":", &credentials.password].concat();
    assert!(Credentials::from_token(&pair) == credentials);
    if !credentials.user.is_empty() {
        let basic = format!("Basic {}", STANDARD.encode(pair));
        headers.insert(AUTHORIZATION, HeaderValue::from_str(&basic).expect("base64 fits a header"));
        assert!(Credentials::from_headers(&headers) == Ok(Some(credentials)));
    }
}

/// Checks that a name in another domain is never a name of this server.
pub fn host_names(host: &[u8], own: &[u8]) {
    let accepts = |host: &[u8], own: &[u8]| {
        let Ok(value) = HeaderValue::from_bytes(host) else { return false };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, value);
        has_own_name(&Uri::from_static("/"), &headers, own)
    };
    if accepts(host, b"") {
        let text = std::str::from_utf8(host).expect("names in other encodings are refused");
        let name = without_port(text);
        let is_label = |label: &str| label.bytes().any(|byte| byte.is_ascii_alphabetic());
        let is_address = name.contains(':') || !name.split('.').any(is_label);
        assert!(is_address || name.eq_ignore_ascii_case("localhost"), "{text}");
        assert!(accepts(host, own), "more names of its own do not refuse a name");
        for foreign in [format!("{name}.evil.example"), format!("evil.{name}"), format!("{name}.evil:80")] {
            assert!(!accepts(foreign.as_bytes(), b""), "{foreign}");
        }
    } else if accepts(host, own) {
        let name = std::str::from_utf8(host).map(without_port).expect("as above");
        let names = own.split(u8::is_ascii_whitespace);
        assert!(names.into_iter().any(|own| own.eq_ignore_ascii_case(name.as_bytes())), "{name}");
    }
}
