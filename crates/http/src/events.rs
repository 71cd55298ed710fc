//! Server-sent events: the messages of SUBSCRIBE, PSUBSCRIBE and MONITOR, each as a line `data:`.

#[cfg(fuzzing)]
pub(crate) mod fuzzing;

use std::time::Duration;

use evenkeel_resp::value::{Value, decode};
use hyper::body::Bytes;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::interval;

use crate::worker_connection::WorkerConnection;

/// Messages that wait for a slow client; further messages wait at the worker, whose limit for subscribers
/// (`client-output-buffer-limit pubsub`) ends the connection.
const WAITING_MAX: usize = 16;

/// Interval of comments, by which a client that is gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: &[u8] = b": still there\n\n";

/// Forwards the messages of a connection, of which `first` has come, until either side ends.
pub(crate) fn forward(connection: WorkerConnection, first: &[u8]) -> Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    // There is room for the first.
    let _ = sender.try_send(event(first));
    tokio::spawn(run(connection, sender));
    receiver
}

async fn run(mut connection: WorkerConnection, sender: Sender<Bytes>) {
    let mut keep_alive = interval(KEEP_ALIVE);
    keep_alive.tick().await; // the first is due at once
    loop {
        let next = tokio::select! {
            () = sender.closed() => return,
            message = connection.next() => match message {
                Ok(message) => event(&message),
                Err(_) => return, // the worker has closed the connection
            },
            _ = keep_alive.tick() => Bytes::from_static(COMMENT),
        };
        if sender.send(next).await.is_err() {
            return;
        }
    }
}

/// Returns the event of a message: its words joined by commas.
fn event(message: &[u8]) -> Bytes {
    let value = decode(message).ok().flatten().map(|(value, _)| value);
    let text = match value {
        Some(Value::Array(words)) => words.iter().map(word).collect::<Vec<_>>().join(","),
        Some(Value::Simple(text)) if text == b"OK" => "\"OK\"".to_owned(),
        Some(value) => word(&value),
        None => String::new(),
    };
    let lines: String = text.split(['\n', '\r']).map(|line| format!("data: {line}\n")).collect();
    Bytes::from(lines + "\n")
}

fn word(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        value => String::from_utf8_lossy(value.as_bytes().unwrap_or_default()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lines() {
        let shown = |message: &[u8]| String::from_utf8(event(message).to_vec()).expect("text");
        assert_eq!(shown(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"), "data: subscribe,c,1\n\n");
        assert_eq!(shown(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\na,b\r\n"), "data: message,c,a,b\n\n");
        assert_eq!(shown(b"*2\r\n$1\r\nx\r\n$3\r\na\nb\r\n"), "data: x,a\ndata: b\n\n");
        assert_eq!(shown(b"+OK\r\n"), "data: \"OK\"\n\n");
        assert_eq!(shown(b"+1.5 [0 a:1] \"GET\"\r\n"), "data: 1.5 [0 a:1] \"GET\"\n\n");
    }
}
