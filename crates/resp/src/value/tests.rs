//! Replies whole, cut, nested, hostile and mutated.

use super::*;

fn decoded(bytes: &[u8]) -> Value {
    let (value, used) = decode(bytes).expect("well-formed").expect("complete");
    assert_eq!(used, bytes.len());
    value
}

fn encoded(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// A value of each type, with the bytes that servers send and the line that people read.
#[rustfmt::skip]
fn samples() -> Vec<(&'static [u8], Value, &'static str)> {
    let text = |text: &str| Value::bulk(text);
    vec![
        (b"+OK\r\n", Value::Simple(b"OK".to_vec()), "OK"),
        (b"-ERR no\r\n", Value::Error(b"ERR no".to_vec()), "-ERR no"),
        (b":60\r\n", Value::Int(60), ":60"),
        (b":-9223372036854775808\r\n", Value::Int(i64::MIN), ":-9223372036854775808"),
        (b"$1\r\nv\r\n", text("v"), "\"v\""),
        (b"$0\r\n\r\n", text(""), "\"\""),
        (b"$8\r\na\r\n\"\\\x07\x00\xff\r\n", Value::Bulk(b"a\r\n\"\\\x07\x00\xff".to_vec()),
         r#""a\r\n\"\\\a\x00\xff""#),
        (b"$-1\r\n", Value::NullBulk, "(nil)"),
        (b"*-1\r\n", Value::NullArray, "(nil array)"),
        (b"_\r\n", Value::Null, "(null)"),
        (b"*0\r\n", Value::Array(vec![]), "[]"),
        (b"*2\r\n$1\r\na\r\n:1\r\n", Value::Array(vec![text("a"), Value::Int(1)]), "[\"a\", :1]"),
        (b"%1\r\n+k\r\n$1\r\nv\r\n", Value::Map(vec![(Value::Simple(b"k".to_vec()), text("v"))]),
         "{k: \"v\"}"),
        (b"%0\r\n", Value::Map(vec![]), "{}"),
        (b"~1\r\n#t\r\n", Value::Set(vec![Value::Bool(true)]), "~[#t]"),
        (b">2\r\n+a\r\n_\r\n", Value::Push(vec![Value::Simple(b"a".to_vec()), Value::Null]), ">[a, (null)]"),
        (b",3.25\r\n", Value::Double(3.25), ",3.25"),
        (b",-inf\r\n", Value::Double(f64::NEG_INFINITY), ",-inf"),
        (b"#f\r\n", Value::Bool(false), "#f"),
        (b"(-340282366920938463463374607431768211456\r\n",
         Value::BigNumber(b"-340282366920938463463374607431768211456".to_vec()),
         "(-340282366920938463463374607431768211456"),
        (b"=6\r\ntxt:hi\r\n", Value::Verbatim { format: *b"txt", text: b"hi".to_vec() }, "=txt:\"hi\""),
        (b"!5\r\nE a\nb\r\n", Value::BlobError(b"E a\nb".to_vec()), "!E a\\nb"),
        (b"|1\r\n+ttl\r\n:9\r\n*1\r\n:1\r\n",
         Value::Attribute {
             pairs: vec![(Value::Simple(b"ttl".to_vec()), Value::Int(9))],
             value: Box::new(Value::Array(vec![Value::Int(1)])),
         }, "|{ttl: :9} [:1]"),
    ]
}

#[test]
fn every_type_reads_prints_and_writes_back() {
    for (bytes, value, text) in samples() {
        assert_eq!(decoded(bytes), value);
        assert_eq!(value.to_string(), text);
        assert_eq!(encoded(&value), bytes, "{text}");
    }
    assert!(matches!(decoded(b",nan\r\n"), Value::Double(number) if number.is_nan()));
    assert_eq!(encoded(&Value::Double(f64::NAN)), b",nan\r\n");
    assert_eq!(decoded(b",1e+20\r\n"), Value::Double(1e20));
}

/// Every type inside every aggregate, three levels.
fn nested() -> Value {
    let leaves: Vec<Value> = samples().into_iter().map(|(_, value, _)| value).collect();
    let pairs =
        |values: &[Value]| values.iter().map(|value| (value.clone(), value.clone())).collect::<Vec<_>>();
    let inner = vec![
        Value::Array(leaves.clone()),
        Value::Set(leaves.clone()),
        Value::Push(leaves.clone()),
        Value::Map(pairs(&leaves)),
        Value::Attribute { pairs: pairs(&leaves), value: Box::new(Value::Array(leaves)) },
    ];
    Value::Array(vec![Value::Map(pairs(&inner)), Value::Array(inner)])
}

#[test]
fn a_reply_cut_at_any_byte_is_incomplete_and_reads_whole_when_the_rest_comes() {
    let value = nested();
    let bytes = encoded(&value);
    let mut scanner = Scanner::new();
    for cut in 0..bytes.len() {
        assert_eq!(decode(&bytes[..cut]), Ok(None), "cut at {cut}");
        assert_eq!(scanner.scan(&bytes[..cut]), Ok(None), "fed up to {cut}");
    }
    assert_eq!(scanner.scan(&bytes), Ok(Some(bytes.len())));
    assert_eq!(decoded(&bytes), value);
}

#[test]
fn only_the_first_reply_is_taken() {
    assert_eq!(decode(b":1\r\n:2\r\n"), Ok(Some((Value::Int(1), 4))));
    assert_eq!(decode(b"*1\r\n:1\r\nrubbish"), Ok(Some((Value::Array(vec![Value::Int(1)]), 8))));
}

#[test]
#[rustfmt::skip]
fn malformed_replies_are_refused() {
    use DecodeError::*;
    let cases: &[(&[u8], DecodeError)] = &[
        (b"?\r\n", UnknownType(b'?')),
        (b"\r\n", UnknownType(b'\r')),
        (b"*1\r\nx", UnknownType(b'x')),
        (b"$?\r\n", BadLength),
        (b"$\r\n", BadLength),
        (b"$-2\r\n", BadLength),
        (b"$+1\r\n", BadLength),
        (b"%-1\r\n", BadLength),
        (b"$99999999999999999999\r\n", BadLength),
        (b"$18446744073709551615\r\n", BadLength),
        (b"*9223372036854775807\r\n", BadLength),
        (b"%1073741825\r\n", BadLength),
        (b":1x\r\n", BadNumber),
        (b":\r\n", BadNumber),
        (b":18446744073709551616\r\n", BadNumber),
        (b",infinity\r\n", BadNumber),
        (b",1.2.3\r\n", BadNumber),
        (b"#x\r\n", BadNumber),
        (b"(12a\r\n", BadNumber),
        (b"(-\r\n", BadNumber),
        (b"_x\r\n", BadText),
        (b"=3\r\ntxt\r\n", BadText),
        (b"+a\rb", MissingLineEnd),
        (b"+a\nb\r\n", MissingLineEnd),
        (b"$1\r\nabc\r\n", MissingLineEnd),
        (b"$1\r\na\r\r", MissingLineEnd),
    ];
    for (bytes, error) in cases {
        assert_eq!(decode(bytes), Err(*error), "{}", Value::bulk(*bytes));
    }
}

#[test]
fn announced_but_unsent_data_are_not_allocated() {
    for announced in ["$1073741824\r\nabc", "*1073741824\r\n:1\r\n", "%1073741824\r\n", "|1073741824\r\n"] {
        let mut scanner = Scanner::new();
        assert_eq!(scanner.scan(announced.as_bytes()), Ok(None));
        assert!(scanner.pending.capacity() <= DEPTH_MAX, "one number per level, not one per element");
    }
    let endless = "*1073741824\r\n".repeat(DEPTH_MAX + 1);
    assert_eq!(decode(endless.as_bytes()), Err(DecodeError::TooDeep));
}

#[test]
fn nesting_is_taken_to_the_limit_and_no_deeper() {
    let nest = |depth: usize| ["*1\r\n".repeat(depth), ":1\r\n".to_owned()].concat();
    let mut value = &decoded(nest(DEPTH_MAX).as_bytes());
    while let Value::Array(items) = value {
        value = &items[0];
    }
    assert_eq!(value, &Value::Int(1));
    assert_eq!(decode(nest(DEPTH_MAX + 1).as_bytes()), Err(DecodeError::TooDeep));
    let attributes = ["|0\r\n".repeat(DEPTH_MAX + 1), ":1\r\n".to_owned()].concat();
    assert_eq!(decode(attributes.as_bytes()), Err(DecodeError::TooDeep));
}

#[test]
fn a_line_without_end_is_refused_once_it_is_too_long() {
    let mut bytes = vec![b'+'];
    bytes.resize(1 + LINE_MAX, b'x');
    assert_eq!(decode(&bytes), Ok(None));
    bytes.push(b'x');
    assert_eq!(decode(&bytes), Err(DecodeError::LineTooLong));
    bytes.truncate(1 + LINE_MAX);
    bytes.extend_from_slice(b"\r\n");
    assert!(decode(&bytes).is_ok_and(|reply| reply.is_some()), "the longest line that is allowed");
}

#[test]
fn commands_are_arrays_of_bulk_strings() {
    assert_eq!(encode_command(&["SET", "", "v"]), b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$1\r\nv\r\n");
    assert_eq!(encode_command::<&str>(&[]), b"*0\r\n");
    let long = vec![b'x'; 100_000];
    assert_eq!(decoded(&encode_command(&[&long])), Value::Array(vec![Value::Bulk(long)]));
}

/// xorshift64*: enough for mutations, and the seed reproduces a run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const PIECES: &[&[u8]] =
            &[b"\r\n", b"$-1\r\n", b"*1\r\n", b"*99999999\r\n", b"-1", b"0", b"9", b"|0\r\n", b"="];
        let at = self.below(bytes.len().max(1)).min(bytes.len());
        match self.below(4) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => {
                bytes.remove(at);
            }
            2 => bytes.truncate(at),
            _ => {
                bytes.splice(at..at, PIECES[self.below(PIECES.len())].iter().copied());
            }
        }
    }
}

/// Mutated replies never panic; a mutated reply that still decodes writes back to a value that prints the
/// same.
#[test]
fn mutated_replies_are_read_or_refused() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = std::env::var("EVENKEEL_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(now.as_nanos() as u64);
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random(seed | 1);
    let originals: Vec<Vec<u8>> =
        samples().into_iter().map(|(bytes, ..)| bytes.to_vec()).chain([encoded(&nested())]).collect();
    for _ in 0..100_000 {
        let mut bytes = originals[random.below(originals.len())].clone();
        for _ in 0..=random.below(4) {
            random.mutate(&mut bytes);
        }
        if let Ok(Some((value, used))) = decode(&bytes) {
            assert!(used <= bytes.len());
            let again = decoded(&encoded(&value));
            // compares texts: NaN is not equal to itself
            assert_eq!(again.to_string(), value.to_string(), "seed {seed}");
        }
    }
}

/// Redis sends indices of arrays so.
#[test]
fn integers_without_a_sign_are_big_numbers() {
    let digits = b"18446744073709551615";
    let bytes = [b":", &digits[..], b"\r\n"].concat();
    assert_eq!(decoded(&bytes), Value::BigNumber(digits.to_vec()));
}
