//! Replies of servers: a decoded reply, encoded, is decoded as the same value; cuts change nothing.

#![no_main]

use evenkeel_resp::value::{DEPTH_MAX, Scanner, Value, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&step, bytes)) = data.split_first() else { return };
    let whole = Scanner::new().scan(bytes);
    assert_eq!(whole, scan_in_pieces(bytes, usize::from(step) + 1));
    match decode(bytes) {
        Ok(Some((value, len))) => {
            assert_eq!(whole, Ok(Some(len)));
            check(&value);
        }
        Ok(None) => assert_eq!(whole, Ok(None)),
        // The scanner does not look at the texts of numbers.
        Err(error) => assert!(whole == Err(error) || matches!(whole, Ok(Some(_)))),
    }
});

fn scan_in_pieces(bytes: &[u8], step: usize) -> Result<Option<usize>, evenkeel_resp::value::DecodeError> {
    let mut scanner = Scanner::new();
    let mut end = 0;
    while end < bytes.len() {
        end = (end + step).min(bytes.len());
        if let Some(len) = scanner.scan(&bytes[..end])? {
            return Ok(Some(len));
        }
    }
    Ok(None)
}

fn check(value: &Value) {
    assert!(depth(value) <= DEPTH_MAX + 1);
    let encoded = encoded(value);
    let (again, len) = decode(&encoded).expect("it is a reply").expect("it is whole");
    assert_eq!(len, encoded.len());
    // Compared as bytes: NaN differs from itself.
    assert_eq!(self::encoded(&again), encoded);
    assert!(!value.to_string().contains('\n'), "a value is shown as a line");
}

fn encoded(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut bytes);
    bytes
}

fn depth(value: &Value) -> usize {
    let of_pairs = |pairs: &[(Value, Value)]| {
        pairs.iter().map(|(name, value)| depth(name).max(depth(value))).max().unwrap_or(0)
    };
    1 + match value {
        Value::Array(items) | Value::Set(items) | Value::Push(items) => {
            items.iter().map(depth).max().unwrap_or(0)
        }
        Value::Map(pairs) => of_pairs(pairs),
        Value::Attribute { pairs, value } => of_pairs(pairs).max(depth(value)),
        _ => 0,
    }
}
