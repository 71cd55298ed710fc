//! The bodies of requests and answers. The gateway has keys and values in base64, and 64-bit numbers as
//! texts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::documents::to_json;
use super::super::{Document, Meta, Paths, StoreError};
use crate::snapshot::{Change, Guard, Key, Snapshot, Transaction};

/// A number that the gateway writes as a text, and leaves out if it is 0.
pub(super) fn number(value: &Value, name: &str) -> u64 {
    match value.get(name) {
        Some(Value::String(text)) => text.parse().unwrap_or(0),
        Some(value) => value.as_u64().unwrap_or(0),
        None => 0,
    }
}

fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

fn decode(value: &Value) -> Vec<u8> {
    value.as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default()
}

pub(super) fn range(paths: &Paths) -> Value {
    json!({ "key": encode(paths.root()), "range_end": encode(&paths.end()) })
}

pub(super) fn watch(paths: &Paths, revision: u64) -> Value {
    json!({ "create_request": {
        "key": encode(paths.root()),
        "range_end": encode(&paths.end()),
        "start_revision": revision.to_string(),
        "progress_notify": true,
    } })
}

fn guard(paths: &Paths, guard: &Guard) -> Value {
    match guard {
        Guard::Unchanged(key, revision) => json!({
            "target": "MOD", "result": "EQUAL",
            "key": encode(&paths.path(*key)), "mod_revision": revision.to_string(),
        }),
        Guard::Present(key) => json!({
            "target": "CREATE", "result": "GREATER",
            "key": encode(&paths.path(*key)), "create_revision": "0",
        }),
    }
}

fn change(paths: &Paths, change: &Change) -> Value {
    let lease = match change {
        Change::Alive(_, alive) => alive.lease,
        _ => 0,
    };
    match paths.write(change) {
        (path, Some(value)) => json!({ "request_put": {
            "key": encode(&path), "value": encode(&value), "lease": lease.to_string(),
        } }),
        (path, None) => json!({ "request_delete_range": { "key": encode(&path) } }),
    }
}

pub(super) fn transaction(paths: &Paths, transaction: &Transaction) -> Value {
    let guards: Vec<Value> = transaction.guards.iter().map(|one| guard(paths, one)).collect();
    let changes: Vec<Value> = transaction.changes.iter().map(|one| change(paths, one)).collect();
    json!({ "compare": guards, "success": changes })
}

/// Writes the key `meta`, if there is none.
pub(super) fn first_meta(paths: &Paths, meta: &Meta) -> Value {
    let path = encode(&paths.path(Key::Meta));
    json!({
        "compare": [guard(paths, &Guard::Unchanged(Key::Meta, 0))],
        "success": [{ "request_put": { "key": path, "value": encode(&to_json(meta)) } }],
    })
}

/// Parses a key with its value, as ranges and watches have it.
fn document(paths: &Paths, entry: &Value) -> Result<Document, StoreError> {
    let path = decode(&entry["key"]);
    paths.parse(&String::from_utf8_lossy(&path), &decode(&entry["value"]))
}

/// Parses the answer to a range.
pub(super) fn snapshot(paths: &Paths, answer: &Value) -> Result<(Snapshot, Option<Meta>), StoreError> {
    let (mut view, mut meta) = (Snapshot::default(), None);
    for entry in answer["kvs"].as_array().into_iter().flatten() {
        match document(paths, entry)? {
            Document::Meta(found) => meta = Some(found),
            Document::Change(change) => view.apply(number(entry, "mod_revision"), *change),
        }
    }
    view.revision = number(&answer["header"], "revision");
    Ok((view, meta))
}

/// Makes the changes of a watch's answer.
pub(super) fn apply(paths: &Paths, view: &mut Snapshot, result: &Value) -> Result<(), StoreError> {
    for event in result["events"].as_array().into_iter().flatten() {
        let entry = &event["kv"];
        let revision = number(entry, "mod_revision");
        if event["type"] == "DELETE" {
            let path = decode(&entry["key"]);
            view.apply(revision, Change::Delete(paths.key(&String::from_utf8_lossy(&path))?));
        } else if let Document::Change(change) = document(paths, entry)? {
            view.apply(revision, *change);
        }
    }
    view.revision = number(&result["header"], "revision");
    Ok(())
}
