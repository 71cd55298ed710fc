//! Sums that must come out exactly.

use std::sync::atomic::{AtomicI64, Ordering};

use evenkeel_resp::value::Value;

use super::{Member, command, crowd, exec, number};
use crate::start;

const ACCOUNTS: usize = 24;
const BALANCE: i64 = 1_000;

fn account(index: usize) -> String {
    format!("account:{index}") // no hash tag: every account in a slot of its own
}

fn accounts() -> Vec<String> {
    (0..ACCOUNTS).map(account).collect()
}

/// Two different accounts and an amount.
fn order(member: &mut Member<'_>) -> (String, String, i64) {
    let from = member.random.below(ACCOUNTS);
    let to = (from + 1 + member.random.below(ACCOUNTS - 1)) % ACCOUNTS;
    (account(from), account(to), member.random.between(1, 50))
}

fn move_by_increments(member: &mut Member<'_>) {
    while member.goes_on() {
        let (from, to, amount) = order(member);
        let amount = amount.to_string();
        let transfer = [command(["DECRBY", &from, &amount]), command(["INCRBY", &to, &amount])];
        assert!(exec(&mut member.client, &transfer).is_some(), "nothing is watched");
    }
}

fn move_by_compare_and_set(member: &mut Member<'_>) {
    while member.goes_on() {
        let (from, to, amount) = order(member);
        member.client.call(&["WATCH", &from, &to]);
        let guard = member.client.call(&["MGET", &from, &to]);
        let [a, b] = guard.as_items().expect("two values") else { panic!("MGET of two says {guard}") };
        let (a, b) = (number(a) - amount, number(b) + amount);
        let transfer = [command(["MSET", &from, &a.to_string(), &to, &b.to_string()])];
        exec(&mut member.client, &transfer); // if another client was faster: the next transfer
    }
}

fn read_at_once(member: &mut Member<'_>) {
    let all: Vec<String> = ["MGET".to_owned()].into_iter().chain(accounts()).collect();
    while member.goes_on() {
        let guard = member.client.call(&all);
        let sum: i64 = guard.as_items().expect("an array").iter().map(number).sum();
        assert_eq!(sum, BALANCE * ACCOUNTS as i64, "MGET saw half a transfer: {guard}");
    }
}

fn read_in_transaction(member: &mut Member<'_>) {
    let gets: Vec<Vec<String>> = accounts().iter().map(|account| command(["GET", account])).collect();
    while member.goes_on() {
        let guard = exec(&mut member.client, &gets).expect("nothing is watched");
        let sum: i64 = guard.iter().map(number).sum();
        assert_eq!(
            sum,
            BALANCE * ACCOUNTS as i64,
            "a transaction saw half of another: {}",
            Value::Array(guard)
        );
    }
}

#[test]
fn transfers_between_slots_keep_the_sum() {
    let mut server = start(&[]);
    let mut client = server.connect();
    for account in accounts() {
        client.call(&["SET", &account, &BALANCE.to_string()]);
    }
    let readers: &[(usize, super::Part<'_>)] = &[
        (2, &move_by_increments),
        (2, &move_by_compare_and_set),
        (1, &read_at_once),
        (1, &read_in_transaction),
    ];
    let turns = crowd(&mut server, readers);
    assert!(turns > 500, "{turns} turns are no crowd");
}

#[test]
fn concurrent_increments_are_all_counted() {
    let mut server = start(&[]);
    let expected: Vec<AtomicI64> = (0..8).map(|_| AtomicI64::new(0)).collect();
    let count = |member: &mut Member<'_>| {
        while member.goes_on() {
            let mut commands = Vec::new();
            for _ in 0..50 {
                let (counter, by) = (member.random.below(expected.len()), member.random.between(-9, 10));
                expected[counter].fetch_add(by, Ordering::Relaxed);
                commands.push(command(["INCRBY", &format!("counter:{counter}"), &by.to_string()]));
            }
            for reply in member.client.pipeline(&commands) {
                assert!(reply.as_int().is_some(), "INCRBY says {reply}");
            }
        }
    };
    crowd(&mut server, &[(4, &count)]);
    let mut client = server.connect();
    for (counter, expected) in expected.into_iter().enumerate() {
        let counted = number(&client.call(&["GET", &format!("counter:{counter}")]));
        assert_eq!(counted, expected.into_inner(), "counter {counter}");
    }
}

#[test]
fn compare_and_set_by_watch_loses_nothing() {
    let mut server = start(&[]);
    let successes = AtomicI64::new(0);
    let count = |member: &mut Member<'_>| {
        while member.goes_on() {
            member.client.run("WATCH cas");
            let seen = member.client.run("GET cas");
            let next = if seen.is_null() { 1 } else { number(&seen) + 1 };
            if exec(&mut member.client, &[command(["SET", "cas", &next.to_string()])]).is_some() {
                successes.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let turns = crowd(&mut server, &[(4, &count)]);
    let successes = successes.into_inner();
    assert_eq!(number(&server.connect().run("GET cas")), successes);
    assert!(successes > 0 && successes < turns as i64, "{successes} of {turns}: some won, some lost");
}

/// Appends of fixed width: none may be lost, torn or mixed.
#[test]
fn concurrent_appends_are_whole() {
    let mut server = start(&[]);
    let appended = AtomicI64::new(0);
    let append = |member: &mut Member<'_>| {
        while member.goes_on() && appended.load(Ordering::Relaxed) < 100_000 {
            let piece = format!("<{:06}>", member.random.below(1_000_000));
            let commands = vec![command(["APPEND", "joined", &piece]); 10];
            member.client.pipeline(&commands);
            appended.fetch_add(10, Ordering::Relaxed);
        }
    };
    crowd(&mut server, &[(4, &append)]);
    let joined = server.connect().run("GET joined");
    let joined = joined.as_bytes().expect("a string");
    assert_eq!(joined.len() as i64, 8 * appended.into_inner());
    assert!(joined.chunks(8).all(|piece| piece[0] == b'<' && piece[7] == b'>'));
}
