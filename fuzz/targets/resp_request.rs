//! Requests of clients: however a stream is cut, it has the same requests and the same error.

#![no_main]

use evenkeel_resp::float;
use evenkeel_resp::number::{parse_i64, parse_u64};
use evenkeel_resp::request::{Parsed, ProtocolError, State, as_sent, parse, parse_unauthenticated};
use evenkeel_resp::value::encode_command;
use libfuzzer_sys::fuzz_target;

/// Longest argument. A stream is shorter than the limit for lines, so no limit depends on the cuts.
const BULK_MAX: usize = 4096;
const STREAM_MAX: usize = 32 << 10;

const UNAUTHENTICATED_ARGS_MAX: usize = 10;

type Request = Vec<Vec<u8>>;

#[derive(Debug, Default, PartialEq)]
struct Read {
    requests: Vec<Request>,
    error: Option<ProtocolError>,
}

fuzz_target!(|data: &[u8]| {
    let Some((&step, stream)) = data.split_first() else { return };
    if stream.len() > STREAM_MAX {
        return;
    }
    let whole = read(stream, stream.len());
    let in_pieces = read(stream, usize::from(step) + 1);
    assert_eq!(whole, in_pieces, "the cuts change the requests");
    for request in whole.requests.iter().filter(|request| !request.is_empty()) {
        check(request);
    }
    check_unauthenticated(stream);
    check_numbers(stream);
});

/// Reads a stream that arrives in pieces of `step` bytes.
fn read(stream: &[u8], step: usize) -> Read {
    let (mut read, mut args, mut buf) = (Read::default(), Vec::new(), Vec::new());
    let mut state = State::start(0);
    for piece in stream.chunks(step.max(1)) {
        buf.extend_from_slice(piece);
        loop {
            match parse(&mut buf, state, &mut args, BULK_MAX) {
                Ok(Parsed::Ready(after)) => {
                    assert!((state.at..=buf.len()).contains(&after));
                    let words: Request = args.iter().map(|span| span.of(&buf).to_vec()).collect();
                    if let Some(range) = as_sent(&buf, &args) {
                        assert_eq!(buf[range], encode_command(&words), "the common form");
                    }
                    read.requests.push(words);
                    args.clear();
                    state = State::start(after);
                    if after == buf.len() {
                        break;
                    }
                }
                Ok(Parsed::More { state: later, missing }) => {
                    assert!(missing > 0 && (state.at..=buf.len()).contains(&later.at));
                    state = later;
                    break;
                }
                Err(error) => {
                    assert!(error.text().len() < 64 && !error.text().contains(&b'\n') || is_quoting(error));
                    return Read { error: Some(error), ..read };
                }
            }
        }
    }
    read
}

/// Whether the text of the error has a byte of the request.
fn is_quoting(error: ProtocolError) -> bool {
    matches!(error, ProtocolError::ExpectedBulk(_))
}

/// Checks that the request's words, encoded, are read as the same words.
fn check(request: &Request) {
    let mut encoded = encode_command(request);
    let end = encoded.len();
    let mut args = Vec::new();
    let parsed = parse(&mut encoded, State::start(0), &mut args, STREAM_MAX);
    assert_eq!(parsed, Ok(Parsed::Ready(end)));
    let words: Request = args.iter().map(|span| span.of(&encoded).to_vec()).collect();
    assert_eq!(&words, request);
    assert_eq!(as_sent(&encoded, &args), Some(0..end));
}

/// Checks that a client without a login gets the same request, or an error because of its size.
fn check_unauthenticated(stream: &[u8]) {
    let (mut plain, mut limited) = (stream.to_vec(), stream.to_vec());
    let (mut args, mut few) = (Vec::new(), Vec::new());
    let parsed = parse(&mut plain, State::start(0), &mut args, BULK_MAX);
    match parse_unauthenticated(&mut limited, State::start(0), &mut few, BULK_MAX) {
        Err(ProtocolError::UnauthenticatedArray | ProtocolError::UnauthenticatedBulk) => {}
        result => {
            assert_eq!((&result, &few, limited), (&parsed, &args, plain));
            let is_inline = !stream.starts_with(b"*");
            assert!(is_inline || few.len() <= UNAUTHENTICATED_ARGS_MAX);
        }
    }
}

/// Checks that a number is printed as it was read.
fn check_numbers(text: &[u8]) {
    if let Some(number) = parse_i64(text) {
        assert_eq!(number.to_string().as_bytes(), text);
    }
    if let Some(number) = parse_u64(text) {
        assert_eq!(number.to_string().as_bytes(), text);
    }
    let lenient = float::parse_leniently(text);
    if let Some(number) = float::parse(text) {
        assert!(!number.is_nan(), "no command takes NaN");
        assert_eq!(lenient, Some(number), "the strict form is a lenient form");
        let printed = float::Text::new(number);
        assert_eq!(float::parse(printed.as_bytes()), Some(number), "{number}");
    }
    let _ = (float::parse_weight(text), float::parse_exponent(text));
}
