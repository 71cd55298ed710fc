//! Transcripts of expire commands.

use crate::testing::check;

#[test]
fn deadlines_are_set_read_and_cleared() {
    check(
        "
        > TTL k                    < :-2
        > PEXPIRETIME k            < :-2
        > EXPIRE k 10              < :0
        > SET k v
        > TTL k                    < :-1
        > EXPIRETIME k             < :-1
        > PERSIST k                < :0
        > EXPIREAT k 33177117420   < :1
        > EXPIRETIME k             < :33177117420
        > PEXPIRETIME k            < :33177117420000
        > PEXPIREAT k 33177117420499 < :1
        > EXPIRETIME k             < :33177117420
        > PEXPIREAT k 33177117420500 < :1
        > EXPIRETIME k             < :33177117421
        > EXPIRE k 100             < :1
        > TTL k                    < :100
        > PERSIST k                < :1
        > PERSIST k                < :0
        > TTL k                    < :-1
        > PERSIST none             < :0
    ",
    );
}

#[test]
fn keys_expire_at_their_millisecond() {
    check(
        "
        > SET k v
        > PEXPIRE k 300            < :1
        ~ 100ms
        > GET k                    < \"v\"
        ~ 250ms
        > GET k                    < (nil)
        > PTTL k                   < :-2
        > EXISTS k                 < :0
        > PERSIST k                < :0
    ",
    );
}

#[test]
fn a_deadline_in_the_past_deletes() {
    for past in ["EXPIRE k 0", "EXPIRE k -1", "PEXPIRE k -9999", "EXPIREAT k 1", "PEXPIREAT k 0"] {
        check(&format!("> SET k v\n > {past} < :1\n > EXISTS k < :0\n > DBSIZE < :0"));
    }
    check(
        "
        > SET k v
        > PEXPIREAT k -9223372036854775808 < :1
        > EXISTS k                 < :0
        > SET k v
        > EXPIRE k -10 GT          < :0
        > EXPIRE k -10 XX          < :0
        > EXPIRE k -10 LT          < :1
        > EXISTS k                 < :0
    ",
    );
}

#[test]
fn conditions() {
    check(
        "
        > SET k v
        > EXPIRE k 100 XX          < :0
        > EXPIRE k 100 GT          < :0
        > EXPIRE k 100 XX LT       < :0
        > EXPIRE k 100 nx          < :1
        > EXPIRE k 100 NX NX       < :0
        > EXPIRE k 90 GT           < :0
        > EXPIRE k 110 LT          < :0
        > EXPIRE k 200 GT XX       < :1
        > TTL k                    < :200
        > EXPIRE k 50 LT XX        < :1
        > TTL k                    < :50
        > PERSIST k
        > EXPIRE k 70 LT           < :1
        > PEXPIREAT k 9223372036854775807 GT < :1
        > PEXPIREAT k 9223372036854775807 GT < :0
        > PEXPIREAT k 9223372036854775807 LT < :0
        > EXPIRETIME k             < :9223372036854776
    ",
    );
}

#[test]
fn refused_commands_change_nothing() {
    check(
        "
        > SET k v
        > EXPIRE k                 < -ERR wrong number of arguments for 'expire' command
        > EXPIRE k \"\"            < -ERR value is not an integer or out of range
        > EXPIRE k 1.5             < -ERR value is not an integer or out of range
        > EXPIRE k x no            < -ERR Unsupported option no
        > EXPIRE k x \"n\\x00o\"   < -ERR Unsupported option n
        > EXPIRE k 1 NX XX         < -ERR NX and XX, GT or LT options at the same time are not compatible
        > EXPIRE k 1 NX LT         < -ERR NX and XX, GT or LT options at the same time are not compatible
        > EXPIRE k 1 NX XX no      < -ERR Unsupported option no
        > EXPIRE k 1 XX GT LT      < -ERR GT and LT options at the same time are not compatible
        > EXPIRE k 9223370399119966      < -ERR invalid expire time in 'expire' command
        > EXPIRE k 9223372036854776      < -ERR invalid expire time in 'expire' command
        > EXPIRE k -9223372036854776     < -ERR invalid expire time in 'expire' command
        > EXPIRE none 9223372036854776   < -ERR invalid expire time in 'expire' command
        > PEXPIRE k 9223372036854775807  < -ERR invalid expire time in 'pexpire' command
        > EXPIREAT k 9223372036854776    < -ERR invalid expire time in 'expireat' command
        > PEXPIREAT k 9223372036854775808 < -ERR value is not an integer or out of range
        > TTL k                    < :-1
        > EXPIREAT k 9223372036854775    < :1
    ",
    );
}
