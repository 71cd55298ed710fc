//! Checks for the fuzz targets (folder `fuzz` of the repository).

use evenkeel_resp::request::{Parsed, State, parse as parse_request};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde::de::IgnoredAny;

use super::*;

/// Longest command in these checks.
const BYTES_MAX: usize = 1 << 20;

/// Deepest value whose JSON is read as a tree: serde_json reads 127 levels.
const DEPTH_MAX: usize = 100;

/// Checks that a request is refused with a 4xx status, or has commands that reach a worker as they are.
pub fn rest_request(path: &str, text: &str, body: &[u8]) {
    let query = super::query(text);
    let encoded = |word: &[u8]| percent_encode(word, NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> =
        query.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    assert_eq!(super::query(&pairs.join("&")), query);
    let words = words_of(path);
    let parts: String = words.iter().map(|word| format!("/{}", encoded(word))).collect();
    assert_eq!(words_of(&parts), words);
    if let Some(args) = subscription(path) {
        assert!(["subscribe", "psubscribe", "monitor"].contains(&&*shown(&args[0]).to_ascii_lowercase()));
    }
    for has_body in [false, true] {
        match commands(path, &query, has_body, body.to_vec()) {
            Ok(Commands::Single(args)) => check_command(&args),
            Ok(Commands::Pipeline(list) | Commands::Transaction(list)) => {
                assert!((1..=COMMANDS_MAX).contains(&list.len()));
                list.iter().for_each(check_command);
            }
            Err((status, reason)) => {
                assert!(status.is_client_error(), "{status}");
                let mut body = Vec::new();
                write_error(&mut body, reason.as_bytes());
                assert_json(&body);
            }
        }
    }
}

fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

fn check_command(args: &Args) {
    let (mut bytes, mut spans) = (encode_command(args), Vec::new());
    let end = bytes.len();
    let parsed = parse_request(&mut bytes, State::start(0), &mut spans, BYTES_MAX);
    assert_eq!(parsed, Ok(Parsed::Ready(end)), "a worker reads exactly one command");
    assert!(spans.iter().map(|span| span.of(&bytes)).eq(args.iter().map(Vec::as_slice)));
    let words: Option<Vec<&str>> = args.iter().map(|word| std::str::from_utf8(word).ok()).collect();
    if let Some(words) = words.filter(|words| !words.is_empty()) {
        assert_eq!(of_array(&serde_json::json!(words)).as_ref(), Ok(args));
    }
}

/// Checks that replies of a worker become JSON with the same values.
pub fn reply_of_rest(reply: &[u8]) {
    let Ok(value) = value_of(reply) else { return };
    for is_base64 in [false, true] {
        let mut body = Vec::new();
        write_outcome(&mut body, &value, is_base64);
        assert_json(&body);
        if depth(&value) < DEPTH_MAX {
            let json: serde_json::Value = serde_json::from_slice(&body).expect("it is JSON");
            match &value {
                Value::Error(text) => assert_eq!(json["error"], shown(text)),
                value => assert_same(value, &json["result"], is_base64),
            }
        }
        let form = Form::Json { is_base64 };
        let status = if value.is_error() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
        assert_eq!(written_as(&Commands::Single(Vec::new()), reply, form), (status, body));
        for commands in [Commands::Pipeline(Vec::new()), Commands::Transaction(Vec::new())] {
            assert_json(&written_as(&commands, reply, form).1);
        }
    }
    assert_eq!(written_as(&Commands::Single(Vec::new()), reply, Form::Resp2).1, reply);
}

fn written_as(commands: &Commands, reply: &[u8], form: Form) -> (StatusCode, Vec<u8>) {
    let replies = [reply.to_vec()];
    let written = written(commands, &replies, form).expect("the reply was read before");
    let status = written.status();
    match written.into_body() {
        Content::Whole(bytes) => (status, bytes.to_vec()),
        Content::Events(_) => panic!("this is no stream"),
    }
}

pub(crate) fn assert_json(body: &[u8]) {
    serde_json::from_slice::<IgnoredAny>(body).unwrap_or_else(|error| panic!("{error}: {}", shown(body)));
}

pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        _ => 1,
    }
}

fn assert_same(value: &Value, json: &serde_json::Value, is_base64: bool) {
    match value {
        Value::Int(number) => assert_eq!(json.as_i64(), Some(*number)),
        Value::Simple(text) if text == b"OK" => assert_eq!(json, "OK"),
        Value::Simple(text) | Value::Bulk(text) if is_base64 => {
            let decoded = STANDARD.decode(json.as_str().expect("a string"));
            assert_eq!(decoded.as_deref(), Ok(&text[..]));
        }
        Value::Simple(text) | Value::Bulk(text) | Value::Error(text) => assert_eq!(*json, shown(text)),
        Value::Array(values) => {
            let list = json.as_array().expect("an array");
            assert_eq!(list.len(), values.len());
            values.iter().zip(list).for_each(|(value, json)| assert_same(value, json, is_base64));
        }
        _ => assert!(json.is_null()),
    }
}
