//! HyperLogLog commands. The registers and their encodings are in [`hll`](crate::hll).

use evenkeel_store::{Edited, Expire, Kind, Made};

use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::hll::{self, COUNT_AT, Encoding, REGISTERS, Registers};
use crate::{Call, Command, DataHandler, Flags, Group, Keys, at_least, exactly, read, session, write};

const GROUP: Group = Group::HyperLogLog;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
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
    Ok(Flow::Replied)
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
    Ok(Flow::Replied)
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
    Ok(Flow::Replied)
}

/// PFDEBUG <GETREG | DECODE | ENCODING | TODENSE> key, PFDEBUG SIMD <ON | OFF>
fn pfdebug(call: &mut Call<'_, '_>) -> Done {
    if call.args.is(1, "SIMD") {
        // Valkey switches its vector instructions on and off; the results are the same.
        match call.args.word(2).as_bytes() {
            b"ON" => call.reply.simple("enabled"),
            b"OFF" => call.reply.simple("disabled"),
            _ => return Err(Error::text("ERR Argument must be ON or OFF")),
        }
        return Ok(Flow::Replied);
    }
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
    Ok(Flow::Replied)
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
    Ok(Flow::Replied)
}
