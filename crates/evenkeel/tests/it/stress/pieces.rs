//! A client's requests are executed for this client alone, however other clients' requests are read in
//! between.

use evenkeel_resp::value::encode_command;

use super::{Member, command, crowd, number};
use crate::start;

/// A name that is unique to the member.
fn name_of(member: &mut Member<'_>) -> String {
    let id = member.client.call(&["CLIENT", "ID"]).as_int().expect("an id");
    format!("own:{id}")
}

/// Requests in pieces, so that some are always incomplete.
fn send_in_pieces(member: &mut Member<'_>) {
    let name = name_of(member);
    while member.goes_on() {
        let len = 20_000 + member.random.below(80_000);
        let letter = b'a' + member.random.below(26) as u8;
        let value = vec![letter; len];
        let requests = encode_command(&[b"SET", name.as_bytes(), &value]).repeat(3);
        let mut rest = &requests[..];
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(rest.len().min(1 + member.random.below(30_000)));
            member.client.send_raw(piece).expect("the server takes a piece");
            rest = more;
        }
        for _ in 0..3 {
            assert_eq!(member.client.read().to_string(), "OK");
        }
        let guard = member.client.call(&["GET", &name]);
        assert_eq!(guard.as_bytes().map(<[u8]>::len), Some(len), "{name} is not as long as what was set");
        assert_eq!(guard.as_bytes(), Some(&value[..]), "{name} is not what was set");
    }
}

fn send_short_ones(member: &mut Member<'_>) {
    let name = name_of(member);
    while member.goes_on() {
        let turn = member.turns as i64;
        let replies = member.client.pipeline(&[
            command(["SET", &name, &turn.to_string()]),
            command(["GET", &name]),
            command(["ECHO", &turn.to_string()]),
        ]);
        assert_eq!(replies[0].to_string(), "OK", "{name}");
        assert_eq!((number(&replies[1]), number(&replies[2])), (turn, turn), "{name}");
    }
}

#[test]
fn split_requests_run_for_their_own_client() {
    let mut server = start(&["--threads", "1"]);
    let turns = crowd(&mut server, &[(4, &send_in_pieces), (12, &send_short_ones)]);
    assert!(turns > 200, "{turns}");
    let mut client = server.connect();
    assert_eq!(client.run("DBSIZE").to_string(), ":16", "a key of nobody: {}", client.run("KEYS *"));
}
