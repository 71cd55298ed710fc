//! Checks for the fuzz targets (folder `fuzz` of the repository).

/// Checks that a message, whatever its bytes are, becomes one event of the stream.
pub fn event_of_message(message: &[u8]) {
    let event = super::event(message);
    let text = std::str::from_utf8(&event).expect("events are text");
    let lines = text.strip_suffix("\n\n").expect("an empty line ends an event");
    assert!(lines.split('\n').all(|line| line.starts_with("data: ")) && !lines.contains('\r'), "{text}");
}
