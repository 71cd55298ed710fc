//! HyperLogLog commands. The registers and their encodings are in [`hll`](super::hll).

use evenkeel_store::{Edited, Expire, Kind, Made};

use super::hll::{self, COUNT_AT, Encoding, REGISTERS, Registers};
use super::{Call, Command, Flags, Group, Keys, at_least, exactly, read, session, write};
use crate::error::{Done, Error};

const GROUP: Group = Group::HyperLogLog;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    write("PFADD",   at_least(2), Keys::FIRST,  GROUP, pfadd  ).grows().fast(),
    // it keeps the count in the value
    read ("PFCOUNT", at_least(2), Keys::REST,   GROUP, pfcount).flag(Flags::MAY_WRITE),
    write("PFMERGE", at_least(2), Keys::REST,   GROUP, pfmerge).grows(),
    write("PFDEBUG", exactly(3),  Keys::SECOND, GROUP, pfdebug).grows().flag(Flags::ADMIN),
    session("PFSELFTEST", exactly(1), GROUP, pfselftest).scriptable().flag(Flags::ADMIN)
        .without(Flags::LOADING.with(Flags::STALE)),
];

/// PFADD key [element ...]
fn pfadd(call: &mut Call<'_, '_>) -> Done {
    let (args, sparse_max) = (call.args, call.settings.hll_sparse_max_bytes);
    let add = |bytes: &mut [u8]| Ok(hll::add(bytes, args.from(2), sparse_max)?);
    let changes = match call.guard.edit_flat::<Error>(&call.keys[0], add)? {
        Some(changes) => changes,
        None => edit_outside(call, 0, add, || hll::made_of(args.from(2), sparse_max))?,
    };
    call.reply.int(i64::from(changes > 0));
    Ok(())
}

/// Edits a value that is not a flat string as if it were. If the key is missing, stores the value that `make`
/// returns, with its number of changes besides its creation.
fn edit_outside(
    call: &mut Call<'_, '_>,
    key: usize,
    edit: impl FnOnce(&mut [u8]) -> Result<Edited, Error>,
    make: impl FnOnce() -> (Vec<u8>, u64),
) -> Result<u64, Error> {
    let key = &call.keys[key];
    let (bytes, changes) = match call.guard.peek(key) {
        None => {
            let (bytes, changes) = make();
            (bytes, changes + 1)
        }
        Some(view) if view.kind() == Kind::String => {
            let mut bytes = hll::bytes_of(view.string())?.into_owned();
            let Edited { changes, instead } = edit(&mut bytes)?;
            (instead.unwrap_or(bytes), changes)
        }
        Some(_) => return Err(Error::WrongType),
    };
    if changes > 0 {
        call.guard.remake(key, Made::Flat(bytes), Expire::Keep, changes);
    }
    Ok(changes)
}

/// PFCOUNT key [key ...]
fn pfcount(call: &mut Call<'_, '_>) -> Done {
    let count = if let [_] = call.keys { count_of_one(call)? } else { count_of_all(call)? };
    call.reply.int(count as i64);
    Ok(())
}

/// Returns the cached count, or computes it and caches it in the value.
fn count_of_one(call: &mut Call<'_, '_>) -> Result<u64, Error> {
    let key = &call.keys[0];
    let Some(view) = call.guard.read(key) else { return Ok(0) };
    if view.kind() != Kind::String {
        return Err(Error::WrongType);
    }
    let bytes = hll::bytes_of(view.string())?;
    let Some(count) = hll::cached_count(&bytes) else {
        let count = hll::count(&bytes)?;
        call.guard.write_range(key, COUNT_AT, &count.to_le_bytes())?;
        // As Redis does: any client may read the bytes of a string.
        call.log(&[b"PFCOUNT", key.bytes]);
        return Ok(count);
    };
    if !view.is_raw() {
        call.guard.write_same(key)?;
    }
    Ok(count)
}

fn count_of_all(call: &mut Call<'_, '_>) -> Result<u64, Error> {
    let mut registers = Registers::zeros();
    for key in call.keys {
        if let Some(value) = call.guard.string(key)? {
            hll::merge_into(&mut registers, &hll::bytes_of(value)?)?;
        }
    }
    Ok(hll::count_registers(&registers))
}

/// PFMERGE destkey [sourcekey ...]
fn pfmerge(call: &mut Call<'_, '_>) -> Done {
    let sparse_max = call.settings.hll_sparse_max_bytes;
    let (mut registers, mut dense) = (Registers::zeros(), false);
    for key in call.keys {
        let Some(value) = call.guard.string(key)? else { continue };
        let bytes = hll::bytes_of(value)?;
        dense |= hll::encoding(&bytes)? == Encoding::Dense;
        hll::merge_into(&mut registers, &bytes)?;
    }
    let store = |bytes: &mut [u8]| Ok(hll::store(bytes, &registers, dense, sparse_max)?);
    if call.guard.edit_flat::<Error>(&call.keys[0], store)?.is_none() {
        let make = || (hll::merged(&registers, dense, sparse_max), 0);
        edit_outside(call, 0, store, make)?;
    }
    call.reply.ok();
    Ok(())
}

/// PFDEBUG GETREG | DECODE | ENCODING | TODENSE key
fn pfdebug(call: &mut Call<'_, '_>) -> Done {
    let key = &call.keys[0];
    let Some(view) = call.guard.read(key) else {
        return Err(Error::text("ERR The specified key does not exist"));
    };
    if view.kind() != Kind::String {
        return Err(Error::WrongType);
    }
    let bytes = hll::bytes_of(view.string())?.into_owned();
    if !view.is_raw() {
        call.guard.write_same(key)?;
    }
    match call.args.word(1).as_bytes() {
        b"GETREG" => {
            make_dense(call, &bytes)?;
            let mut registers = Registers::zeros();
            hll::merge_into(&mut registers, &bytes)?;
            call.reply.array(REGISTERS);
            registers.iter().for_each(|register| call.reply.int(register.into()));
        }
        b"DECODE" => match hll::decode(&bytes)? {
            Some(runs) => call.reply.bulk(runs.as_bytes()),
            None => return Err(Error::text("ERR HLL encoding is not sparse")),
        },
        b"ENCODING" => call.reply.simple(hll::encoding(&bytes)?.name()),
        b"TODENSE" => {
            let changes = make_dense(call, &bytes)?;
            call.reply.int(changes.into());
        }
        _ => {
            let name = call.args.quoted(1, usize::MAX);
            return Err(Error::Bytes([b"ERR Unknown PFDEBUG subcommand '", name, b"'"].concat()));
        }
    }
    Ok(())
}

/// Makes the key's value, which is `bytes`, dense; false if it is dense already.
fn make_dense(call: &mut Call<'_, '_>, bytes: &[u8]) -> Result<bool, Error> {
    if hll::encoding(bytes)? == Encoding::Dense {
        return Ok(false);
    }
    call.guard.remake(&call.keys[0], Made::Flat(hll::to_dense(bytes)?), Expire::Keep, 1);
    Ok(true)
}

/// PFSELFTEST
fn pfselftest(call: &mut Call<'_, '_>) -> Done {
    match hll::self_test() {
        Ok(()) => call.reply.ok(),
        Err(wrong) => return Err(Error::text(format!("TESTFAILED {wrong}"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::{Program, Reference, Server, Target, transcript};

    use crate::testing::{World, check};

    #[test]
    fn counting_and_merging() {
        check(
            r#"
            > PFADD h                    < :1
            > PFADD h                    < :0
            > PFCOUNT h                  < :0
            > PFADD h a b c              < :1
            > PFADD h a b c              < :0
            > PFCOUNT h                  < :3
            > PFADD g c d                < :1
            > PFCOUNT h g nosuch         < :4
            > PFMERGE m h g              < OK
            > PFCOUNT m                  < :4
            > PFMERGE m                  < OK
            > PFMERGE new nosuch         < OK
            > GET new                    < "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x7f\xff"
            > PFCOUNT nosuch             < :0
            > EXISTS nosuch              < :0
            > PFADD                      < -ERR wrong number of arguments for 'pfadd' command
            > PFCOUNT                    < -ERR wrong number of arguments for 'pfcount' command
            > PFMERGE                    < -ERR wrong number of arguments for 'pfmerge' command
        "#,
        );
    }

    /// The last byte of the count says whether it is out of date.
    #[test]
    fn a_count_is_kept_until_a_register_changes() {
        check(
            r#"
            > PFADD h a b c              < :1
            > GETRANGE h 8 15            < "\x00\x00\x00\x00\x00\x00\x00\x80"
            > PFCOUNT h                  < :3
            > GETRANGE h 8 15            < "\x03\x00\x00\x00\x00\x00\x00\x00"
            > PFADD h a                  < :0
            > GETRANGE h 8 15            < "\x03\x00\x00\x00\x00\x00\x00\x00"
            > PFDEBUG TODENSE h          < :1
            > GETRANGE h 8 15            < "\x03\x00\x00\x00\x00\x00\x00\x00"
            > SETRANGE h 8 c             < :12304
            > PFCOUNT h                  < :99
            > PFADD h d                  < :1
            > GETRANGE h 8 15            < "c\x00\x00\x00\x00\x00\x00\x80"
            > PFCOUNT h                  < :4
        "#,
        );
    }

    #[test]
    fn deadlines_and_encodings_of_the_string() {
        check(
            r#"
            > PFADD h a                  < :1
            > OBJECT ENCODING h          < "raw"
            > EXPIRE h 1000              < :1
            > PFADD h b                  < :1
            > PFCOUNT h                  < :2
            > PFDEBUG TODENSE h          < :1
            > PFADD h c                  < :1
            > PFMERGE h nosuch           < OK
            > TTL h                      < :1000
            > SET s "HYLL\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00q\xa6\x84NW"    < OK
            > OBJECT ENCODING s          < "embstr"
            > PFCOUNT s s                < :1
            > OBJECT ENCODING s          < "embstr"
            > PFADD foreign              < :1
            > SET foreign xyz            < OK
            > PFADD foreign a            < -WRONGTYPE*
            > OBJECT ENCODING foreign    < "embstr"
            > PFCOUNT s                  < :1
            > OBJECT ENCODING s          < "raw"
        "#,
        );
    }

    #[test]
    fn debugging() {
        check(
            r#"
            > PFADD h a b                < :1
            > PFDEBUG ENCODING h         < sparse
            > PFDEBUG decode h           < "Z:12711 v:2,1 Z:3068 v:1,1 Z:603"
            > PFDEBUG TODENSE h          < :1
            > PFDEBUG TODENSE h          < :0
            > PFDEBUG ENCODING h         < dense
            > PFDEBUG DECODE h           < -ERR HLL encoding is not sparse
            > PFADD g a                  < :1
            > PFDEBUG GETREG g           < [:0, :0, *]
            > PFDEBUG ENCODING g         < dense
            > PFDEBUG FOO h              < -ERR Unknown PFDEBUG subcommand 'FOO'
            > PFDEBUG FOO nosuch         < -ERR The specified key does not exist
            > PFDEBUG GETREG             < -ERR wrong number of arguments for 'pfdebug' command
            > PFSELFTEST x               < -ERR wrong number of arguments for 'pfselftest' command
        "#,
        );
        World::new().check("> PFSELFTEST < OK"); // redis-server takes seconds
    }

    #[test]
    fn strings_that_are_none() {
        check(
            r#"
            > SET s 12                   < OK
            > PFADD s a                  < -WRONGTYPE Key is not a valid HyperLogLog string value.
            > PFCOUNT s                  < -WRONGTYPE Key is not a valid HyperLogLog string value.
            > PFCOUNT nosuch s           < -WRONGTYPE Key is not a valid HyperLogLog string value.
            > PFMERGE new s              < -WRONGTYPE Key is not a valid HyperLogLog string value.
            > PFMERGE s new              < -WRONGTYPE Key is not a valid HyperLogLog string value.
            > PFDEBUG ENCODING s         < -WRONGTYPE Key is not a valid HyperLogLog string value.
            > EXISTS new                 < :0
            > PFADD h a b c              < :1
            > APPEND h hello             < :32
            > PFCOUNT h                  < -INVALIDOBJ Corrupted HLL object detected
            > PFCOUNT h h                < -INVALIDOBJ Corrupted HLL object detected
            > PFMERGE new h              < -INVALIDOBJ Corrupted HLL object detected
            > PFDEBUG GETREG h           < -INVALIDOBJ Corrupted HLL object detected
            > PFDEBUG TODENSE h          < -INVALIDOBJ Corrupted HLL object detected
            > SET e "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80"   < OK
            > PFADD e a                  < -INVALIDOBJ Corrupted HLL object detected
            > PFDEBUG DECODE e           < ""
        "#,
        );
    }

    /// A failed PFADD has added nothing (Redis keeps the elements before the failing element), and a huge
    /// string is not searched for registers. The value here has registers for `a` but not for `b`.
    #[test]
    fn errors_change_nothing() {
        let mut world = World::new();
        world.check(
            r#"
            > SET s "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80q\xa6\x80"   < OK
            > PFADD s a b               < -INVALIDOBJ Corrupted HLL object detected
            > GET s                     < "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80q\xa6\x80"
            > PFADD s a                 < :1
            > SETRANGE s 5000000 x      < :5000001
            > PFADD s a                 < -INVALIDOBJ Corrupted HLL object detected
            > PFCOUNT s                 < -INVALIDOBJ Corrupted HLL object detected
            > PFMERGE s                 < -INVALIDOBJ Corrupted HLL object detected
            > PFDEBUG DECODE s          < -INVALIDOBJ Corrupted HLL object detected
            > SETRANGE s 0 X            < :5000001
            > PFCOUNT s                 < -WRONGTYPE Key is not a valid HyperLogLog string value.
        "#,
        );
    }

    /// A string of more than 16 KiB does not lie in its entry. No server makes such a value, but any would
    /// read it.
    #[test]
    fn a_sparse_value_may_be_longer_than_a_dense_one() {
        let text = r#"
            > EXPIRE h 1000              < :1
            > PFCOUNT h                  < :0
            > PFCOUNT h                  < :0
            > PFADD h a                  < :1
            > PFADD h a                  < :0
            > STRLEN h                   < :32783
            > TTL h                      < :1000
            > PFCOUNT h h                < :1
            > PFMERGE g h                < OK
            > GET g                      < "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80q\xa6\x84NW"
            > PFMERGE h g                < OK
            > STRLEN h                   < :32783
            > PFDEBUG TODENSE h          < :1
            > PFCOUNT h                  < :1
            > TTL h                      < :1000
        "#;
        let mut value = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80".to_vec();
        value.extend([0x40, 0].repeat(super::REGISTERS));
        let set = [b"SET".to_vec(), b"h".to_vec(), value];
        let mut world = World::new();
        world.call(&set).expect("a reply");
        world.check(text);
        if let Some(oracle) = Program::oracle(Reference::Redis) {
            let oracle = Server::start(&oracle, &[]);
            oracle.connect().call(&set);
            transcript::check(&oracle, text);
        }
    }

    /// It may write, and be part of a transaction that does.
    #[test]
    fn counting_waits_for_a_pause_of_writes() {
        let mut world = World::new();
        world.check(
            "
            > PFADD h a             < :1
            > MULTI                 < OK
            > PFCOUNT h             < QUEUED
            > EXEC                  < [:1]
        ",
        );
        for (queued, is_paused) in [("GET h", false), ("PFCOUNT h", true), ("PFADD h", true)] {
            world.run("MULTI");
            world.run(queued);
            world.check("operator> CLIENT PAUSE 100000 WRITE");
            assert_eq!(world.is_paused("EXEC"), is_paused, "{queued}");
            world.check("operator> CLIENT UNPAUSE");
            world.run("DISCARD");
        }
        world.run("CLIENT PAUSE 100000 WRITE");
        let paused = ["PFCOUNT", "PFADD", "GET", "EXEC"].map(|name| world.is_paused(name));
        assert_eq!(paused, [true, true, false, false]);
    }
}
