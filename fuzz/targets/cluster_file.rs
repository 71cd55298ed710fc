//! Files of a cluster's map: what is read is written so that the same map is read again.

#![no_main]

use evenkeel_cluster::nodes_file::{read, write};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(content) = read(text) {
        assert!(content.map.node(content.me).is_some());
        assert!(content.map.nodes().len() <= text.lines().count());
        assert_eq!(read(&write(&content.map, content.me)), Ok(content));
    }
});
