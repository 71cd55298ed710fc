//! Checks for the fuzz targets (folder `fuzz` of the repository).

use hyper::Uri;

use super::*;
use crate::rest::fuzzing::{assert_json, depth};

/// Deepest value whose JSON is read as a tree: serde_json reads 127 levels.
const DEPTH_MAX: usize = 100;

/// Checks that the numbers of a query are within their bounds.
pub fn query_of_page(text: &str) {
    let query = query(text);
    for now_ms in [0, 1, 1 << 40, i64::MAX] {
        if let Ok((from, to)) = span(&query, now_ms) {
            assert!(from <= to);
        }
    }
    let Ok(uri) = format!("/api/slots?{text}").parse::<Uri>() else { return };
    let head = Request::builder().uri(uri).body(()).expect("it has a URI").into_parts().0;
    let named = value_in(&super::query(head.uri.query().unwrap_or_default()), "db").map(<[u8]>::to_vec);
    match database(&head) {
        Ok(None) => assert_eq!(named, None),
        Ok(Some(number)) => {
            let text = String::from_utf8(named.expect("it was read")).expect("digits");
            assert_eq!(text.trim_start_matches(['+', '0']), number.to_string().trim_start_matches('0'));
        }
        Err((status, _)) => assert_eq!(status, StatusCode::BAD_REQUEST),
    }
}

/// Checks that words keep their bytes, and that a refusal shows nothing of a login.
pub fn body_of_page(body: &[u8]) {
    if let Ok(parsed) = parse(body)
        && let Ok(args) = words(&parsed)
    {
        let encoded: Vec<_> =
            args.iter().map(|word| serde_json::json!({ "b64": STANDARD.encode(word) })).collect();
        assert_eq!(words(&encoded.into()), Ok(args));
    }
    let refusal = credentials(b"").err();
    match credentials(body) {
        Ok(Credentials { user, password }) => {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("strings of JSON are text");
            let login = serde_json::json!({ "user": text(&user), "password": text(&password) });
            let again = credentials(login.to_string().as_bytes()).expect("it was written so");
            assert!(again == Credentials { user, password });
        }
        Err(refused) => assert_eq!(Some(refused), refusal, "every refusal has the same text"),
    }
}

/// Checks that the page gets every byte of a reply.
pub fn reply_to_page(reply: &[u8]) {
    let Ok(value) = value_of(reply) else { return };
    let mut body = Vec::new();
    write_outcome(&mut body, &value, 12);
    assert_json(&body);
    if depth(&value) >= DEPTH_MAX {
        return;
    }
    let json: serde_json::Value = serde_json::from_slice(&body).expect("it is JSON");
    match &value {
        Value::Error(_) => assert_same(&value, &json),
        value => {
            assert_eq!(json["us"], 12);
            assert_same(value, &json["result"]);
        }
    }
}

fn assert_same(value: &Value, json: &serde_json::Value) {
    match value {
        Value::Int(number) => assert_eq!(json.as_i64(), Some(*number)),
        Value::Simple(text) | Value::Bulk(text) => match json.as_str() {
            Some(shown) => assert_eq!(shown.as_bytes(), text),
            None => {
                assert!(std::str::from_utf8(text).is_err());
                let decoded = STANDARD.decode(json["b64"].as_str().expect("base64"));
                assert_eq!(decoded.as_ref(), Ok(text));
            }
        },
        Value::Error(text) => assert_eq!(json["error"], *String::from_utf8_lossy(text)),
        Value::Array(values) => {
            let list = json.as_array().expect("an array");
            assert_eq!(list.len(), values.len());
            values.iter().zip(list).for_each(|(value, json)| assert_same(value, json));
        }
        _ => assert!(json.is_null()),
    }
}

/// Checks that a request with an `Origin` passes only if the origin is its `Host`, and that a cookie's value
/// stands in the header behind its name.
pub fn origin_and_cookies(host: &[u8], origin: &[u8], cookie: &[u8]) {
    let Ok(mut head) = Request::builder().body(()).map(|request| request.into_parts().0) else { return };
    let mut insert = |name: hyper::header::HeaderName, value: &[u8]| {
        HeaderValue::from_bytes(value).is_ok_and(|value| head.headers.insert(name, value).is_none())
    };
    let has_host = insert(HOST, host);
    let has_origin = insert(ORIGIN, origin);
    insert(COOKIE, cookie);
    if has_origin && check_origin(&head).is_ok() {
        let name = origin.splitn(2, |byte| *byte == b':').nth(1).and_then(|rest| rest.strip_prefix(b"//"));
        let host = if has_host && host.iter().all(|byte| (b' '..0x7f).contains(byte) || *byte == b'\t') {
            host
        } else {
            b""
        };
        assert!(name.is_some_and(|name| name.eq_ignore_ascii_case(host)));
    }
    for value in cookies(&head.headers, "evenkeel_session_1") {
        let pair = format!("evenkeel_session_1={value}");
        assert!(cookie.windows(pair.len()).any(|window| window == pair.as_bytes()) && !value.contains(';'));
    }
}
