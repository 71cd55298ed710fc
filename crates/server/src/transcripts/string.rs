//! Strings as a client sees them. Commands that Redis has run on redis-server as well, if it is installed.

use crate::testing::live::Live;
use crate::testing::{World, check};

#[test]
fn set_with_options_in_any_order() {
    check(
        r#"
        > SET k 1 NX                           < OK
        > SET k 2 nx                           < (nil)
        > SET k 2 GET NX                       < "1"
        > SET k 2 XX GET EX 100                < "1"
        > TTL k                                < :100
        > SET k 3 KEEPTTL KEEPTTL              < OK
        > TTL k                                < :100
        > SET k 4 EX 10 EX 20                  < OK
        > TTL k                                < :20
        > SET k 5 EXAT 4102444800 GET          < "4"
        > EXPIRETIME k                         < :4102444800
        > SET k 5 PXAT 4102444800001           < OK
        > PEXPIRETIME k                        < :4102444800001
        > SET k 6                              < OK
        > TTL k                                < :-1
        > SET none 1 XX                        < (nil)
        > SET none 1 XX GET                    < (nil)
        > EXISTS none                          < :0
        > SET gone 1 EXAT 1                    < OK
        > EXISTS gone                          < :0
        > SET k 7 NX XX                        < -ERR syntax error
        > SET k 7 EX 10 PX 10                  < -ERR syntax error
        > SET k 7 EX 10 KEEPTTL                < -ERR syntax error
        > SET k 7 PERSIST                      < -ERR syntax error
        > SET k 7 EX                           < -ERR syntax error
        > SET k 7 EX x FOO                     < -ERR syntax error
        > SET k 7 EX x                         < -ERR value is not an integer or out of range
        > SET k 7 GET EX 0                     < -ERR invalid expire time in 'set' command
        > SET k 7 PX 9223372036854775807       < -ERR invalid expire time in 'set' command
        > SET k 7 EXAT 9223372036854775807     < -ERR invalid expire time in 'set' command
        > GET k                                < "6"
        > SETEX k 0 7                          < -ERR invalid expire time in 'setex' command
        > PSETEX k -1 7                        < -ERR invalid expire time in 'psetex' command
        > SETEX k x 7                          < -ERR value is not an integer or out of range
        > SETEX k 50 7                         < OK
        > TTL k                                < :50
        > SETNX k 8                            < :0
        > GETSET k 8                           < "7"
        > TTL k                                < :-1
        > GETDEL k                             < "8"
        > GETDEL k                             < (nil)
        > SETNX k 9                            < :1
    "#,
    );
}

/// The commands of Redis 8.4, by its documentation and tests: no server of that version can be asked here.
#[test]
fn values_are_compared_by_themselves_and_by_digest() {
    World::new().check(
        r#"
        > DIGEST k                             < (nil)
        > SET k "Hello world" IFNE x           < OK
        > DIGEST k                             < "b6acb9d84a38ff74"
        > SET k hello IFNE "Hello world"       < (nil)
        > SET k hello IFDEQ 1                  < (nil)
        > SET k hello IFDEQ B6ACB9D84A38FF74   < OK
        > SET k world IFDNE 9555e8555c62dcfd GET    < "hello"
        > GET k                                < "hello"
        > SET k world IFDNE 1 GET EX 10        < "hello"
        > TTL k                                < :10
        > SET new 1 IFDNE 1234567890           < OK
        > SET none 1 IFDEQ 1234567890          < (nil)
        > EXISTS none                          < :0
        > SET k v IFDEQ nodigest               < -ERR a digest has up to 16 hexadecimal digits
        > SET k v IFDEQ 12345678901234567      < -ERR a digest has up to 16 hexadecimal digits
        > SET k v IFDEQ                        < -ERR syntax error
        > SET k v NX IFDEQ 1                   < -ERR syntax error
        > SET k v IFEQ a IFNE b                < -ERR syntax error
        > DELEX k IFEQ hello                   < :0
        > DELEX k IFNE world                   < :0
        > DELEX k ifdeq 1                      < :0
        > DELEX k IFEQ world                   < :1
        > EXISTS k                             < :0
        > SET k hello                          < OK
        > DELEX k IFDNE 9555e8555c62dcfd       < :0
        > DELEX k IFDEQ 9555e8555c62dcfd       < :1
        > SET k 123                            < OK
        > OBJECT ENCODING k                    < "int"
        > DELEX k IFNE 124                     < :1
        > DELEX k IFEQ                         < :0
        > DELEX k IFDNE 1                      < :0
        > SET k x                              < OK
        > DELEX k IFEQ                         < -ERR wrong number of arguments for 'delex' command
        > DELEX k IFEQ x y                     < -ERR wrong number of arguments for 'delex' command
        > DELEX k EQ x                         < -ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE
        > DELEX k IFDEQ x                      < -ERR a digest has up to 16 hexadecimal digits
        > DELEX k                              < :1
        > RPUSH l x                            < :1
        > DIGEST l                             < -WRONGTYPE*
        > SET l x IFDEQ 1                      < -WRONGTYPE*
        > SET l x IFNE y                       < -WRONGTYPE*
        > DELEX l IFEQ x                       < -ERR Key should be of string type if conditions are specified
        > DELEX l                              < :1
    "#,
    );
}

/// IFEQ, DELIFEQ and MSETEX come from Valkey: these are its answers.
#[test]
fn extensions_of_valkey() {
    World::new().check(
        r#"
        > SET k 2 IFEQ 1                       < (nil)
        > SET k 1                              < OK
        > SET k 2 IFEQ 2                       < (nil)
        > SET k 2 IFEQ 1                       < OK
        > SET k 3 EX 100 IFEQ 1 GET            < "2"
        > SET k 3 EX 100 IFEQ 2 GET            < "2"
        > TTL k                                < :100
        > GET k                                < "3"
        > SET k 3 IFEQ                         < -ERR syntax error
        > SET k 3 IFEQ 3 NX                    < -ERR syntax error
        > SET k 3 XX IFEQ 3                    < -ERR syntax error
        > SET k 3 IFEQ 3 IFEQ 3                < -ERR syntax error
        > DELIFEQ k 2                          < :0
        > DELIFEQ k 3                          < :1
        > DELIFEQ k 3                          < :0
        > DELIFEQ k                            < -ERR wrong number of arguments for 'delifeq' command
        > MSETEX 2 a 1 b 2                     < :1
        > MSETEX 2 a 3 c 4 NX                  < :0
        > MSETEX 2 a 3 c 4 XX                  < :0
        > MSETEX 2 a 3 b 4 XX EX 100           < :1
        > MSETEX 1 a 5 KEEPTTL                 < :1
        > TTL a                                < :100
        > MGET a b c                           < ["5", "4", (nil)]
        > MSETEX 1 a 5 PXAT 1                  < :1
        > EXISTS a                             < :0
        > MSETEX 0 a 1                         < -ERR invalid numkeys value or out of range
        > MSETEX x a 1                         < -ERR invalid numkeys value or out of range
        > MSETEX 2147483648 a 1                < -ERR invalid numkeys value or out of range
        > MSETEX 2147483647 a 1                < -ERR syntax error
        > MSETEX 2 a 1                         < -ERR syntax error
        > MSETEX 1 a 1 GET                     < -ERR syntax error
        > MSETEX 1 a 1 NX XX                   < -ERR syntax error
        > MSETEX 1 a 1 NX EX 0                 < -ERR invalid expire time in 'msetex' command
        > MSETEX 1 a                           < -ERR wrong number of arguments for 'msetex' command
    "#,
    );
}

#[test]
fn getex_and_many_keys() {
    check(
        r#"
        > SET k 1 EX 100
        > GETEX k                              < "1"
        > TTL k                                < :100
        > GETEX k PERSIST                      < "1"
        > TTL k                                < :-1
        > GETEX k PX 50000                     < "1"
        > TTL k                                < :50
        > GETEX k EX 0                         < -ERR invalid expire time in 'getex' command
        > GETEX k KEEPTTL                      < -ERR syntax error
        > GETEX k EX 1 PERSIST                 < -ERR syntax error
        > GETEX none NX                        < -ERR syntax error
        > GETEX k EXAT 1                       < "1"
        > EXISTS k                             < :0
        > MSET a 1 b 2 a 3                     < OK
        > MGET a none b a                      < ["3", (nil), "2", "3"]
        > MSETNX c 1 a 2                       < :0
        > EXISTS c                             < :0
        > MSETNX c 1 c 2                       < :1
        > GET c                                < "2"
        > MSET a 1 b                           < -ERR wrong number of arguments for 'mset' command
        > MSETNX a 1 b                         < -ERR wrong number of arguments for 'msetnx' command
    "#,
    );
}

#[test]
fn counting() {
    check(
        r#"
        > INCR n                               < :1
        > EXPIRE n 100
        > INCRBY n 41                          < :42
        > DECR n                               < :41
        > DECRBY n -1                          < :42
        > TTL n                                < :100
        > OBJECT ENCODING n                    < "int"
        > SET n 9223372036854775806
        > INCR n                               < :9223372036854775807
        > INCR n                               < -ERR increment or decrement would overflow
        > DECRBY n -9223372036854775808        < -ERR decrement would overflow
        > INCRBY n 1.5                         < -ERR value is not an integer or out of range
        > SET n -9223372036854775808
        > DECR n                               < -ERR increment or decrement would overflow
        > SET n " 1"
        > INCR n                               < -ERR value is not an integer or out of range
        > SET n 10
        > EXPIRE n 100
        > INCRBYFLOAT n 0.5                    < "10.5"
        > INCRBYFLOAT n -0.5                   < "10"
        > TTL n                                < :100
        > OBJECT ENCODING n                    < "embstr"
        > INCR n                               < :11
        > OBJECT ENCODING n                    < "int"
        > INCRBYFLOAT n x                      < -ERR value is not a valid float
        > INCRBYFLOAT n inf                    < -ERR increment would produce NaN or Infinity
        > INCRBYFLOAT new 3000.1               < "3000.10000000000000009"
        > SET n x
        > INCRBYFLOAT n 1                      < -ERR value is not a valid float
    "#,
    );
}

/// The replies are those that the tests of Redis 8.8 and Valkey 9.2 expect.
#[test]
fn increments_with_bounds() {
    World::new().check(
        r#"
        > INCREX n                             < [:1, :1]
        > INCREX n BYINT 9                     < [:10, :9]
        > OBJECT ENCODING n                    < "int"
        > INCREX n BYINT 5 UBOUND 12           < [:10, :0]
        > INCREX n BYINT 5 UBOUND 12 SATURATE  < [:12, :2]
        > INCREX n BYINT -5 UBOUND 7           < [:7, :-5]
        > INCREX n BYINT 5 UBOUND 5 SATURATE   < [:5, :-2]
        > INCREX n BYINT -5 LBOUND 20 SATURATE < [:20, :15]
        > INCREX n BYINT 5 LBOUND 30           < [:20, :0]
        > INCREX n LBOUND 0 BYINT 9 UBOUND 25 SATURATE < [:25, :5]
        > GET n                                < "25"
        > SET n 9223372036854775800
        > INCREX n BYINT 9223372036854775800   < [:9223372036854775800, :0]
        > INCREX n BYINT 9223372036854775800 SATURATE < [:9223372036854775807, :7]
        > INCREX n BYINT 1 SATURATE UBOUND -9223372036854775808
        < -ERR applied increment would overflow
        > GET n                                < "9223372036854775807"
        > INCREX none BYINT 5 LBOUND 10        < [:0, :0]
        > EXISTS none                          < :0
        > INCREX none UBOUND 0 SATURATE        < [:0, :0]
        > EXISTS none                          < :1
        > INCREX nx NX                         < [:1, :1]
        > INCREX nx NX BYINT 5                 < [:1, :0]
        > INCREX xx XX BYFLOAT 0.5             < ["0", "0"]
        > INCREX nx XX BYFLOAT 0.5             < ["1.5", "0.5"]
        > OBJECT ENCODING nx                   < "embstr"
        > INCREX nx                            < -ERR value is not an integer or out of range
        > INCREX nx BYFLOAT 5.5 UBOUND 4.25    < ["1.5", "0"]
        > INCREX nx BYFLOAT 5.5 UBOUND 4.25 SATURATE < ["4.25", "2.75"]
        > INCREX nx BYFLOAT -9 LBOUND -0.5 SATURATE  < ["-0.5", "-4.75"]
        > INCREX nx BYFLOAT 0.5                < ["0", "0.5"]
        > INCREX nx BYFLOAT 11 UBOUND inf LBOUND -inf < ["11", "11"]
        > INCREX nx BYFLOAT 1 LBOUND inf UBOUND +inf  < ["11", "0"]
        > INCREX nx BYFLOAT 1 LBOUND inf UBOUND +inf SATURATE
        < -ERR applied increment would be Infinity
        > SET big 1.0e4932
        > INCREX big BYFLOAT 1.1e4932 UBOUND 3 < [*, "0"]
        > INCREX big BYFLOAT 1.1e4932 UBOUND 3 SATURATE < ["3", *]
        > SET big inf
        > INCREX big BYFLOAT 1                 < -ERR value cannot be Infinity
        > INCREX big BYINT 1                   < -ERR value is not an integer or out of range
        > RPUSH l a
        > INCREX l EXAT 1                      < -WRONGTYPE*
        a> HELLO 3                             < *
        a> INCREX f BYFLOAT 2.5                < [,2.5, ,2.5]
    "#,
    );
}

#[test]
fn increments_change_the_expiration() {
    World::new().check(
        "
        > INCREX n EX 100                      < [:1, :1]
        > TTL n                                < :100
        > INCREX n PX 50000 ENX                < [:2, :1]
        > INCREX n                             < [:3, :1]
        > TTL n                                < :100
        > INCREX n BYINT 9 UBOUND 5 PERSIST    < [:3, :0]
        > INCREX n BYINT 9 UBOUND 5 EX 7       < [:3, :0]
        > TTL n                                < :100
        > INCREX n EXAT 1 ENX                  < [:4, :1]
        > TTL n                                < :100
        > INCREX n BYFLOAT 0.5 PERSIST         < *
        > TTL n                                < :-1
        > INCREX n BYFLOAT 0.5 PX 50000 ENX    < *
        > TTL n                                < :50
        > INCREX n PXAT 1                      < [:6, :1]
        > EXISTS n                             < :0
        > INCREX n EXAT 1                      < [:1, :1]
        > EXISTS n                             < :0
    ",
    );
}

#[test]
fn increments_refuse_invalid_arguments() {
    let mut world = World::new();
    for options in [
        "FOO",
        "BYINT",
        "BYINT 1 BYFLOAT 1",
        "BYINT 1 BYINT 1",
        "LBOUND 0 LBOUND 1",
        "UBOUND",
        "SATURATE SATURATE",
        "NX XX",
        "XX XX",
        "EX 1 PX 1",
        "EX 1 PERSIST",
        "PERSIST EX 1",
        "PERSIST ENX",
        "ENX PERSIST",
        "PERSIST PERSIST",
        "ENX ENX EX 1",
        "KEEPTTL",
    ] {
        world.check(&format!("> INCREX n {options} < -ERR syntax error"));
    }
    world.check(
        "
        > INCREX                               < -ERR wrong number of arguments for 'increx' command
        > INCREX n ENX                         < -ERR ENX flag requires an expiration
        > INCREX n BYINT 1.5                   < -ERR Increment is not an integer or out of range
        > INCREX n BYFLOAT x                   < -ERR Increment is not a valid float
        > INCREX n BYFLOAT nan                 < -ERR Increment is not a valid float
        > INCREX n BYFLOAT 1e99999             < -ERR Increment is not a valid float
        > INCREX n BYFLOAT -inf                < -ERR BYFLOAT increment cannot be Infinity
        > INCREX n LBOUND inf                  < -ERR LBOUND is not an integer or out of range
        > INCREX n UBOUND 1.5                  < -ERR UBOUND is not an integer or out of range
        > INCREX n BYFLOAT 1 LBOUND x          < -ERR LBOUND is not a valid float
        > INCREX n BYFLOAT 1 UBOUND x          < -ERR UBOUND is not a valid float
        > INCREX n LBOUND 10 UBOUND 5          < -ERR LBOUND can't be greater than UBOUND
        > INCREX n BYFLOAT 1 UBOUND -inf       < -ERR LBOUND can't be greater than UBOUND
        > INCREX n BYFLOAT 1 LBOUND inf        < -ERR LBOUND can't be greater than UBOUND
        > INCREX n EX 0                        < -ERR invalid expire time in 'increx' command
        > INCREX n PX x                        < -ERR value is not an integer or out of range
        > EXISTS n                             < :0
    ",
    );
}

#[test]
fn ranges_and_lengths() {
    check(
        r#"
        > APPEND k 12                          < :2
        > OBJECT ENCODING k                    < "int"
        > APPEND k ""                          < :2
        > OBJECT ENCODING k                    < "raw"
        > APPEND k 345                         < :5
        > APPEND e ""                          < :0
        > EXISTS e                             < :1
        > STRLEN k                             < :5
        > STRLEN none                          < :0
        > GETRANGE k 1 -2                      < "234"
        > SUBSTR k -3 100                      < "345"
        > GETRANGE k 3 1                       < ""
        > GETRANGE none 0 x                    < -ERR value is not an integer or out of range
        > SETRANGE k 7 ab                      < :9
        > GET k                                < "12345\x00\x00ab"
        > SETRANGE k 100 ""                    < :9
        > SETRANGE none 100 ""                 < :0
        > EXISTS none                          < :0
        > SETRANGE k -1 a                      < -ERR offset is out of range
        > SETRANGE k x a                       < -ERR value is not an integer or out of range
        > SETRANGE k 536870912 a               < -ERR string exceeds maximum allowed size (proto-max-bulk-len)
        > SETRANGE k 9223372036854775807 ab    < -ERR string exceeds maximum allowed size (proto-max-bulk-len)
        > SETRANGE far 536870911 a             < :536870912
        > APPEND far a                         < -ERR string exceeds maximum allowed size (proto-max-bulk-len)
        > GETRANGE far 536870910 -1            < "\x00a"
        > INCR far                             < -ERR value is not an integer or out of range
        > DEL far
    "#,
    );
}

#[test]
fn common_subsequences() {
    check(
        r#"
        > MSET a ohmytext b mynewtext
        > LCS a b                              < "mytext"
        > LCS a b LEN                          < :6
        > LCS a b IDX
        < ["matches", [[[:4, :7], [:5, :8]], [[:2, :3], [:0, :1]]], "len", :6]
        > LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN < ["matches", [[[:4, :7], [:5, :8], :4]], "len", :6]
        > LCS a none                           < ""
        > LCS none none IDX                    < ["matches", [], "len", :0]
        > LCS a b LEN IDX
        < -ERR If you want both the length and indexes, please just use IDX.
        > LCS a b MINMATCHLEN                  < -ERR syntax error
        > LCS a b MINMATCHLEN x                < -ERR value is not an integer or out of range
        > SETRANGE far 67108862 x
        > LCS far a
        < -ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len
        > LCS far none LEN                     < :0
        > DEL far
    "#,
    );
}

/// A request of a megabyte must not become a reply of gigabytes, none of which will be sent.
#[test]
fn replies_over_the_output_limit_are_aborted() {
    let mut world = World::new();
    world.configure("client-output-buffer-limit", "normal 50000 0 0");
    let value = "x".repeat(10_000);
    world.check(&format!("> SET k {value}\n > HSET h f {value}\n > XADD s 1-1 f {value}"));
    let times = |what: &str| format!(" {what}").repeat(100);
    for line in [
        format!("MGET{}", times("k")),
        format!("HMGET h{}", times("f")),
        format!("HGETEX h FIELDS 100{}", times("f")),
        format!("XREAD STREAMS{}{}", times("s"), times("0")),
    ] {
        world.type_in("a", &line);
        assert!((50_001..61_000).contains(&world.unread("a")), "{} {line:.20}", world.unread("a"));
        world.hang_up("a");
    }
    world.check("> MGET k k < *\n > PING < PONG");
}

/// A reply that was cut off is not sent, even if the limit has changed by then.
#[test]
fn aborted_replies_are_never_sent() {
    let live = Live::start(1, &["--client-output-buffer-limit", "normal 100000 0 0 pubsub 0 0 0"]);
    let mut client = live.connect();
    assert!(!client.run(&format!("SET k {}", "x".repeat(10_000))).is_error());
    let all = format!("MULTI\r\nMGET{}\r\nSUBSCRIBE c\r\nEXEC\r\n", " k".repeat(20));
    client.send_raw(all.as_bytes()).expect("an open connection");
    let got = client.read_to_end().expect("it is closed");
    assert!(got.len() < 1000, "{} bytes", got.len());
    live.stop();
}
