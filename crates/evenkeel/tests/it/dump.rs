//! DUMP, RESTORE and MIGRATE: a transferred value is equal on both servers, and a broken payload is refused
//! or gives a valid value.

mod broken;
mod content;
mod exchange;
mod migrate;
mod oracles;
mod samples;

use evenkeel_resp::value::Value;
use evenkeel_testkit::Client;

use samples::Sample;

type Args = Vec<Vec<u8>>;

/// Builds key `v` anew.
#[track_caller]
fn build(client: &mut Client, sample: &Sample) {
    client.call(&["DEL", "v"]);
    for args in &sample.commands {
        let reply = client.call(args);
        assert!(
            !reply.is_error(),
            "{}: {reply} to {}",
            sample.name,
            evenkeel_testkit::words::join(&args[..3])
        );
    }
}

/// Returns the DUMP of an existing key.
#[track_caller]
fn dump(client: &mut Client, key: &str) -> Vec<u8> {
    let reply = client.call(&["DUMP", key]);
    reply.as_bytes().unwrap_or_else(|| panic!("DUMP {key}: {reply}")).to_vec()
}

fn restore(client: &mut Client, key: &str, payload: &[u8]) -> Value {
    client.call(&[b"RESTORE", key.as_bytes(), b"0", payload, b"REPLACE"])
}
