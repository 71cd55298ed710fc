//! SPOP and SRANDMEMBER: members at random, each choice as likely as any other.
//!
//! Members have positions, so a choice of members is a choice of positions. Whatever the size of the set and
//! the count, no draw is wasted, and no set is copied just to be emptied.

use evenkeel_store::collection::sample::Dice;
use evenkeel_store::collection::{Collection, Set};

use super::form::{HASHTABLE, LISTPACK, Limits};
use super::{Call, Open, all};
use crate::error::Error;
use crate::flow::Work;
use crate::flow::{Done, Flow};
use crate::reply::{BULK_MIN, Reply};

const NOT_A_COUNT: &str = "ERR value is out of range, must be positive";
const OUT_OF_RANGE: &str = "ERR value is out of range";
const TOO_NEGATIVE: &str =
    "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";

/// SPOP key [count]
pub(super) fn spop(call: &mut Call<'_, '_>) -> Done {
    match call.args.len() {
        2 => pop_one(call),
        3 => {
            let count = call.args.int(2).ok().and_then(|count| u64::try_from(count).ok());
            pop_many(call, count.ok_or(Error::text(NOT_A_COUNT))?)
        }
        _ => Err(Error::Syntax),
    }
}

fn pop_one(call: &mut Call<'_, '_>) -> Done {
    let mut dice = Dice::new(call.guard.ctx.random());
    let (key, reply, is_logged) = (&call.keys[0], &mut *call.reply, call.guard.is_logged());
    let popped = call.guard.edit_if_there::<Set, _>(key, |set| {
        let at = dice.below(set.len());
        let member = set.get(at).expect("a position inside");
        reply.element(&member, || set.share(at));
        let member = is_logged.then(|| member.to_vec());
        let cut = set.remove_range(at..at + 1);
        set.discard(cut);
        set.changes = 1;
        member
    })?;
    match popped {
        None => call.reply.null(),
        Some(None) => {}
        Some(Some(member)) => call.log(&[b"SREM", key.bytes, &member]),
    }
    Ok(Flow::Replied)
}

fn pop_many(call: &mut Call<'_, '_>, count: u64) -> Done {
    let (mut dice, limits) = (Dice::new(call.guard.ctx.random()), Limits::of(call.settings));
    let len = call.guard.peek_collection::<Set>(&call.keys[0])?.map_or(0, |set| set.len());
    if call.is_worth_offloading(count.min(len) as usize) {
        return offload_pop(call, count.min(len), dice);
    }
    let (key, reply, is_logged) = (&call.keys[0], &mut *call.reply, call.guard.is_logged());
    let popped = call.guard.edit_if_there::<Set, _>(key, |set| {
        set.changes = count.min(set.len());
        if set.changes == set.len() {
            all(reply, set, Open::Set);
            let cut = std::mem::replace(&mut **set, Set::new()).into_cut();
            set.discard(cut);
            Popped::All
        } else {
            let positions = dice.positions(set.changes, set.len());
            some(reply, set, &positions, &mut dice, Open::Set);
            let members = if is_logged { members_at(set, &positions) } else { Vec::new() };
            set.remove_each(&positions);
            set.form = form_of_rest(set.form, set.changes, set, limits);
            Popped::Some(members)
        }
    })?;
    match popped {
        None => call.reply.set(0),
        Some(Popped::All) => call.log_removal(key, call.settings.lazyfree_lazy_server_del),
        Some(Popped::Some(members)) => call.log_each(&[b"SREM", key.bytes], 1, members),
    }
    Ok(Flow::Replied)
}

/// The journal's entry for a SPOP.
enum Popped {
    All,
    /// Empty if nothing is logged.
    Some(Vec<Vec<u8>>),
}

fn members_at(set: &Set, positions: &[u64]) -> Vec<Vec<u8>> {
    positions.iter().map(|at| set.get(*at).expect("a position inside").to_vec()).collect()
}

/// Offloads the pop of many members of a large set: the other thread splits the shared set, and the rest
/// replaces the set.
fn offload_pop(call: &mut Call<'_, '_>, count: u64, mut dice: Dice) -> Done {
    let Some(set) = call.guard.peek_collection::<Set>(&call.keys[0])?.map(|set| Set::clone(&set)) else {
        unreachable!("the caller has seen the set");
    };
    let (known, mut popped) = (set.clone(), Reply::default());
    popped.resp3 = call.reply.resp3;
    let divide = move || {
        let positions = dice.positions(count, set.len());
        some(&mut popped, &set, &positions, &mut dice, Open::Set);
        let mut rest = set.clone();
        rest.remove_each(&positions);
        Ok((set, rest, positions, popped))
    };
    let is_there_still = move |call: &mut Call<'_, '_>| {
        let now = call.guard.peek_collection::<Set>(&call.keys[0]);
        now.is_ok_and(|now| now.is_some_and(|now| now.is_same(&known)))
    };
    call.offload(Work::writes(divide, is_there_still, move |call, (set, rest, positions, popped)| {
        let limits = Limits::of(call.settings);
        call.guard.edit_if_there::<Set, _>(&call.keys[0], |old| {
            old.changes = count;
            old.form = form_of_rest(old.form, count, &rest, limits);
            let cut = std::mem::replace(&mut **old, rest).into_cut();
            old.discard(cut);
        })?;
        let members = positions.iter().map(|at| set.get(*at).expect("a position inside"));
        call.log_each(&[b"SREM", call.keys[0].bytes], 1, members);
        call.guard.discard(set);
        call.reply.append(popped);
        Ok(Flow::Replied)
    }))
}

/// If it pops most of a set, Redis makes a new set of the rest.
fn form_of_rest(form: u8, popped: u64, rest: &Set, limits: Limits) -> u8 {
    /// Popping this many times the rest counts as most.
    const MOST: u64 = 5;
    let is_new = popped >= rest.len() * MOST;
    if form == HASHTABLE && is_new && limits.fits_listpack(rest) { LISTPACK } else { form }
}

/// SRANDMEMBER key [count]
pub(super) fn srandmember(call: &mut Call<'_, '_>) -> Done {
    match call.args.len() {
        2 => show_one(call),
        3 => match call.args.int(2)? {
            i64::MIN => Err(Error::text(TOO_NEGATIVE)),
            count if count < 0 => show_any(call, count.unsigned_abs()),
            count => show_different(call, count as u64),
        },
        _ => Err(Error::Syntax),
    }
}

fn show_one(call: &mut Call<'_, '_>) -> Done {
    let mut dice = Dice::new(call.guard.ctx.random());
    match call.guard.collection::<Set>(&call.keys[0])? {
        Some(set) => {
            let at = dice.below(set.len());
            call.reply.element(&set.get(at).expect("a position inside"), || set.share(at));
        }
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}

/// Replies with different members, at most `count`.
fn show_different(call: &mut Call<'_, '_>, count: u64) -> Done {
    let mut dice = Dice::new(call.guard.ctx.random());
    let Some(set) = call.guard.collection::<Set>(&call.keys[0])?.map(|set| Set::clone(&set)) else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    let elements = count.min(set.len()) as usize;
    let mut show = move |reply: &mut Reply| {
        if count >= set.len() {
            return all(reply, &set, Open::Array);
        }
        let positions = dice.positions(count, set.len());
        some(reply, &set, &positions, &mut dice, Open::Array);
    };
    if call.is_worth_offloading(elements) {
        return call.offload(Work::reads(move |reply| {
            show(reply);
            Ok(())
        }));
    }
    show(call.reply);
    Ok(Flow::Replied)
}

/// Replies with `count` members, with repetitions.
///
/// The count has no bound, so the reply has: the client's output buffer limit, at which its connection is
/// closed with nothing sent, or else the longest string.
fn show_any(call: &mut Call<'_, '_>, count: u64) -> Done {
    let mut dice = Dice::new(call.guard.ctx.random());
    let (len_max, longest) = (call.reply_len_max(), call.settings.proto_max_bulk_len);
    let Some(set) = call.guard.collection::<Set>(&call.keys[0])?.map(|set| Set::clone(&set)) else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    if len_max == usize::MAX && count > longest as u64 / BULK_MIN {
        return Err(Error::text(OUT_OF_RANGE));
    }
    let mut show = move |reply: &mut Reply| {
        let (mark, start) = (reply.mark(), reply.len());
        reply.array(count as usize);
        for _ in 0..count {
            let at = dice.below(set.len());
            reply.element(&set.get(at).expect("a position inside"), || set.share(at));
            if reply.cut_beyond(len_max) {
                break;
            }
            if len_max == usize::MAX && reply.len() - start > longest {
                reply.rewind(mark);
                return Err(Error::text(OUT_OF_RANGE));
            }
        }
        Ok(())
    };
    if call.is_worth_offloading(count as usize) {
        call.offload(Work::reads(show))
    } else {
        show(call.reply).map(|()| Flow::Replied)
    }
}

/// Writes the members at these positions, in random order.
fn some(reply: &mut Reply, set: &Set, positions: &[u64], dice: &mut Dice, open: Open) {
    let member = |at: &u64| (*at, set.get(*at).expect("a position inside"));
    let mut members: Vec<_> = positions.iter().map(member).collect();
    dice.shuffle(&mut members);
    open.write(reply, members.len());
    members.iter().for_each(|(at, member)| reply.element(member, || set.share(*at)));
}
