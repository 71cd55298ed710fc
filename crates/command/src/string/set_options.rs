//! The options that SET, GETEX, MSETEX, HGETEX and HSETEX share, in any order.
//!
//! They are parsed first and evaluated afterwards, as in Redis: a wrong word is reported before a bad time,
//! whichever comes first.

use evenkeel_store::{Expire, Millis};

use crate::Args;
use crate::error::Error;

/// The command whose options are parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Set,
    GetEx,
    MSetEx,
    HGetEx,
    HSetEx,
}

/// The condition for setting keys, or fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    Always,
    /// NX
    IfAbsent,
    /// XX
    IfPresent,
    /// IFEQ, IFNE, IFDEQ, IFDNE
    Compared(Comparison<'a>),
}

/// A comparison of a string's value, or of its digest, with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison<'a> {
    /// The value or digest as given.
    pub with: &'a [u8],
    /// Compares the digest, not the value.
    pub by_digest: bool,
    /// Whether they have to be equal. A missing key is equal to nothing.
    pub wants_equal: bool,
}

impl<'a> Comparison<'a> {
    /// Returns the comparison that a word in upper case names, or `None`.
    pub fn named(word: &[u8], with: &'a [u8]) -> Option<Comparison<'a>> {
        let (by_digest, wants_equal) = match word {
            b"IFEQ" => (false, true),
            b"IFNE" => (false, false),
            b"IFDEQ" => (true, true),
            b"IFDNE" => (true, false),
            _ => return None,
        };
        Some(Comparison { with, by_digest, wants_equal })
    }
}

/// A time as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time<'a> {
    pub text: &'a [u8],
    pub seconds: bool,
    /// Counted from now, not from the Unix epoch.
    pub relative: bool,
}

/// The change of the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ttl<'a> {
    Unsaid,
    /// KEEPTTL
    Keep,
    /// PERSIST
    Persist,
    /// EX, PX, EXAT, PXAT
    At(Time<'a>),
}

/// Options as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options<'a> {
    pub condition: Condition<'a>,
    /// FNX, FXX
    pub field_condition: Condition<'a>,
    /// GET
    pub get: bool,
    ttl: Ttl<'a>,
    /// From a primary, or a file. Valkey's HSETEX and MSETEX replace the last of several relative times by
    /// the absolute time and leave the relative times before it, a combination that no client may send.
    replays: bool,
}

impl<'a> Options<'a> {
    /// Parses the arguments from `at` on.
    pub fn parse(args: &Args<'a>, at: usize, of: Of) -> Result<Options<'a>, Error> {
        Options::parse_sent(args, at, of, false)
    }

    /// [`Options::parse`] for arguments that, if `replays`, come from a primary or a file.
    pub fn parse_sent(args: &Args<'a>, mut at: usize, of: Of, replays: bool) -> Result<Options<'a>, Error> {
        let always = Condition::Always;
        let mut options =
            Options { condition: always, field_condition: always, get: false, ttl: Ttl::Unsaid, replays };
        while at < args.len() {
            let used = options.take(args, at, of).ok_or(Error::Syntax)?;
            at += used;
        }
        Ok(options)
    }

    /// Takes the option at `at`, and returns how many arguments it used. `None` if it is not an option, or
    /// conflicts with an option before it.
    fn take(&mut self, args: &Args<'a>, at: usize, of: Of) -> Option<usize> {
        let sets = !matches!(of, Of::GetEx | Of::HGetEx);
        match args.word(at).as_bytes() {
            b"NX" if sets => demand(&mut self.condition, Condition::IfAbsent)?,
            b"XX" if sets => demand(&mut self.condition, Condition::IfPresent)?,
            b"FNX" if of == Of::HSetEx => demand(&mut self.field_condition, Condition::IfAbsent)?,
            b"FXX" if of == Of::HSetEx => demand(&mut self.field_condition, Condition::IfPresent)?,
            word @ (b"IFEQ" | b"IFNE" | b"IFDEQ" | b"IFDNE")
                if of == Of::Set && self.condition == Condition::Always =>
            {
                self.condition = Condition::Compared(Comparison::named(word, args.get(at + 1)?)?);
                return Some(2);
            }
            b"GET" if of == Of::Set => self.get = true,
            b"KEEPTTL" if sets => self.settle(Ttl::Keep)?,
            b"PERSIST" if !sets => self.settle(Ttl::Persist)?,
            name => {
                let (seconds, relative) = match name {
                    b"EX" => (true, true),
                    b"PX" => (false, true),
                    b"EXAT" => (true, false),
                    b"PXAT" => (false, false),
                    _ => return None,
                };
                self.settle(Ttl::At(Time { text: args.get(at + 1)?, seconds, relative }))?;
                return Some(2);
            }
        }
        Some(1)
    }

    /// As in [`demand`]: of two times in the same unit the later holds.
    fn settle(&mut self, ttl: Ttl<'a>) -> Option<()> {
        let fits = match (self.ttl, ttl) {
            (Ttl::Unsaid, _) | (Ttl::Keep, Ttl::Keep) | (Ttl::Persist, Ttl::Persist) => true,
            (Ttl::At(a), Ttl::At(b)) if self.replays && a.relative && !b.relative => true,
            (Ttl::At(a), Ttl::At(b)) => (a.seconds, a.relative) == (b.seconds, b.relative),
            _ => false,
        };
        self.ttl = ttl;
        fits.then_some(())
    }

    /// Returns the new deadline of a key that this command sets.
    pub fn expire(&self, now_ms: Millis, command: &'static str) -> Result<Expire, Error> {
        Ok(match self.ttl {
            Ttl::Unsaid | Ttl::Persist => Expire::Clear,
            Ttl::Keep => Expire::Keep,
            Ttl::At(time) => Expire::At(time.deadline(now_ms, command)?),
        })
    }

    /// Returns the new deadline of a field that this command sets. Zero is a valid time, in the past.
    pub fn field_expire(&self, now_ms: Millis, command: &'static str) -> Result<Expire, Error> {
        Ok(match self.ttl {
            Ttl::Unsaid | Ttl::Persist => Expire::Clear,
            Ttl::Keep => Expire::Keep,
            Ttl::At(time) => Expire::At(time.deadline_from(0, now_ms, command)?),
        })
    }

    /// Whether a time is given, at which the key or field expires.
    pub fn has_deadline(&self) -> bool {
        matches!(self.ttl, Ttl::At(_))
    }

    /// Whether no option concerns the deadline.
    pub fn leaves_deadline(&self) -> bool {
        self.ttl == Ttl::Unsaid
    }
}

/// An option may be repeated; its opposite may not follow.
fn demand<'a>(demanded: &mut Condition<'a>, condition: Condition<'a>) -> Option<()> {
    let fits = *demanded == Condition::Always || *demanded == condition;
    *demanded = condition;
    fits.then_some(())
}

impl Time<'_> {
    /// Milliseconds since the Unix epoch. `command` is for the error's text.
    pub fn deadline(&self, now_ms: Millis, command: &'static str) -> Result<Millis, Error> {
        self.deadline_from(1, now_ms, command)
    }

    /// [`Time::deadline`] with `least` as the smallest valid number.
    fn deadline_from(&self, least: i64, now_ms: Millis, command: &'static str) -> Result<Millis, Error> {
        let given = evenkeel_resp::number::parse_i64(self.text).ok_or(Error::NotInteger)?;
        let invalid = Error::InvalidExpire(command);
        if given < least {
            return Err(invalid);
        }
        let given = if self.seconds { given.checked_mul(1000) } else { Some(given) };
        let base = if self.relative { now_ms as i64 } else { 0 };
        let deadline = given.and_then(|given| given.checked_add(base)).ok_or(invalid)?;
        Ok(deadline as Millis)
    }
}
