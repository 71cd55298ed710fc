//! The parsed options of a SORT.

use evenkeel_store::key::slot_of;
use evenkeel_store::{Keyspace, Place};

use super::source::Source;
use crate::error::Error;
use crate::{Args, Keys};

/// The key to be sorted, and the key of the last STORE.
pub(super) const KEYS: Keys = Keys::Across(|args, db, _, key| {
    key(1, db);
    let stores = options(args, true).map_while(|option| option);
    let last =
        stores.filter_map(|option| if let Choice::Store(at) = option { Some(at) } else { None }).last();
    if let Some(at) = last {
        key(at, db);
    }
});

/// The key to be sorted. Not `Keys::FIRST`, whose slot is locked whatever the arguments are.
pub(super) const KEYS_RO: Keys = Keys::Across(|_, db, _, key| key(1, db));

/// Whether a call has patterns, and so reads keys beyond its arguments.
pub(super) fn has_patterns(args: &Args<'_>) -> bool {
    options(args, true).map_while(|option| option).any(|option| match option {
        Choice::By(at) | Choice::Get(at) => matches!(Pattern::parse(args.at(at)), Pattern::Keys { .. }),
        _ => false,
    })
}

/// An option, with the index of its first value.
#[derive(Clone, Copy)]
enum Choice {
    Descending(bool),
    Alpha,
    Limit(usize),
    Store(usize),
    By(usize),
    Get(usize),
}

/// Returns the options of a call, in order; `None` for an unknown option, after which the rest has no
/// meaning.
fn options<'a>(args: &'a Args<'a>, stores: bool) -> impl Iterator<Item = Option<Choice>> + 'a {
    let mut at = 2;
    std::iter::from_fn(move || {
        let values = args.len().checked_sub(at + 1)?;
        let (choice, taken) = match args.word(at).as_bytes() {
            b"ASC" => (Choice::Descending(false), 0),
            b"DESC" => (Choice::Descending(true), 0),
            b"ALPHA" => (Choice::Alpha, 0),
            b"LIMIT" if values >= 2 => (Choice::Limit(at + 1), 2),
            b"STORE" if values >= 1 && stores => (Choice::Store(at + 1), 1),
            b"BY" if values >= 1 => (Choice::By(at + 1), 1),
            b"GET" if values >= 1 => (Choice::Get(at + 1), 1),
            _ => return Some(None),
        };
        at += 1 + taken;
        Some(Some(choice))
    })
}

/// Checks in cluster mode that the keys of all patterns are in the slot of the sorted key.
///
/// # Errors
/// The error for the client.
pub(super) fn check_slots(args: &Args<'_>, may_store: bool) -> Result<(), Error> {
    let own = slot_of(args.at(1));
    for option in options(args, may_store).map_while(|option| option) {
        let (name, at) = match option {
            Choice::By(at) if args.at(at).contains(&b'*') => ("BY", at),
            Choice::Get(at) if args.at(at) != b"#" => ("GET", at),
            _ => continue,
        };
        if slot_of_pattern(args.at(at)) != Some(own) {
            return Err(Error::text(format!(
                "ERR {name} option of SORT denied in Cluster mode when keys formed by the pattern may be in \
                 different slots."
            )));
        }
    }
    Ok(())
}

/// Returns the slot of all keys that a pattern can form; `None`: they may have several.
fn slot_of_pattern(pattern: &[u8]) -> Option<u16> {
    let (mut open, mut at) = (None, 0);
    while let Some(byte) = pattern.get(at) {
        match (byte, open) {
            (b'*' | b'?' | b'[' | b'\\', _) => return None,
            (b'{', None) => open = Some(at),
            (b'}', Some(open)) if at > open + 1 => return Some(slot_of(&pattern[open + 1..at])),
            _ => {}
        }
        at += 1;
    }
    Some(slot_of(pattern))
}

fn denied(option: &str) -> Error {
    Error::text(format!("ERR {option} option of SORT denied due to insufficient ACL permissions."))
}

/// See the module's text.
pub(super) struct Plan {
    /// The pattern to sort by, if not by the elements themselves.
    pub(super) by: Option<Pattern>,
    /// The patterns for the reply, if not the elements themselves.
    pub(super) gets: Vec<Pattern>,
    /// Whether there is an order at all.
    pub(super) sorts: bool,
    pub(super) descending: bool,
    /// Texts are compared, not numbers.
    pub(super) alpha: bool,
    /// Offset and count of the reply; a negative count means all.
    limit: (i64, i64),
    pub(super) stores: bool,
    /// Bytes beyond which the rest of the reply is left out: see
    /// [`Call::reply_len_max`](crate::Call::reply_len_max).
    pub(super) reply_len_max: usize,
}

impl Plan {
    /// Parses the options. `reads_all_keys`: the user may read all keys, and so the keys of any pattern.
    pub(super) fn parse(args: &Args<'_>, may_store: bool, reads_all_keys: bool) -> Result<Plan, Error> {
        let mut plan = Plan {
            by: None,
            gets: Vec::new(),
            sorts: true,
            descending: false,
            alpha: false,
            limit: (0, -1),
            stores: false,
            reply_len_max: usize::MAX,
        };
        for option in options(args, may_store) {
            match option.ok_or(Error::Syntax)? {
                Choice::Descending(descending) => plan.descending = descending,
                Choice::Alpha => plan.alpha = true,
                Choice::Limit(at) => plan.limit = (args.int(at)?, args.int(at + 1)?),
                Choice::Store(_) => plan.stores = true,
                Choice::By(at) => {
                    let by = Pattern::parse(args.at(at));
                    // A pattern without a star, even if another follows, means that nothing is sorted.
                    plan.sorts &= matches!(by, Pattern::Keys { .. });
                    if !reads_all_keys && matches!(by, Pattern::Keys { .. }) {
                        return Err(denied("BY"));
                    }
                    plan.by = Some(by);
                }
                Choice::Get(_) if !reads_all_keys => return Err(denied("GET")),
                Choice::Get(at) => plan.gets.push(Pattern::parse(args.at(at))),
            }
        }
        if !plan.sorts {
            plan.by = None;
        }
        Ok(plan)
    }

    /// Gives an order to a set that is stored or returned to a script, whatever the options are: the same
    /// members make the same list.
    pub(super) fn suit(&mut self, source: &Source, for_script: bool) {
        if !self.sorts && (self.stores || for_script) && source.is_unordered() {
            (self.sorts, self.alpha) = (true, true);
        }
    }

    /// Returns the selected positions among `len` elements in their order.
    pub(super) fn range(&self, len: usize) -> std::ops::Range<usize> {
        let (offset, count) = self.limit;
        let start = usize::try_from(offset).unwrap_or(if offset < 0 { 0 } else { len }).min(len);
        let count = usize::try_from(count).unwrap_or(len);
        start..start.saturating_add(count).min(len)
    }

    fn lookups(&self) -> impl Iterator<Item = &Pattern> {
        let patterns = self.by.iter().chain(&self.gets);
        patterns.filter(|pattern| matches!(pattern, Pattern::Keys { .. }))
    }

    /// Whether it looks at keys that the elements name.
    pub(super) fn looks_up(&self) -> bool {
        self.lookups().next().is_some()
    }

    /// Returns the cost, in the units of [`crate::Call::is_worth_offloading`].
    pub(super) fn units(&self, source: &Source) -> usize {
        let len = if self.sorts { source.len() } else { self.range(source.len()).len() };
        len.saturating_mul(2 + 10 * self.lookups().count() + self.gets.len())
    }

    /// Returns the selected elements in the source's order, if nothing is sorted.
    pub(super) fn unsorted<'s>(&self, source: &'s Source) -> Vec<&'s [u8]> {
        let len = source.len();
        let range = self.range(len);
        if !self.descending || source.is_unordered() {
            return source.elements(range);
        }
        let mut elements = source.elements(len - range.end..len - range.start);
        elements.reverse();
        elements
    }

    /// Adds the places of all keys that the elements name; if the elements have to be sorted first, some may
    /// not be needed.
    pub(super) fn add_places(&self, source: &Source, keyspace: &Keyspace, db: u32, places: &mut Vec<Place>) {
        let elements = if self.sorts { source.elements(0..source.len()) } else { self.unsorted(source) };
        let mut name = Vec::new();
        for pattern in self.lookups() {
            for element in &elements {
                pattern.name(element, &mut name);
                places.push(keyspace.key(db, &name).place);
            }
        }
    }
}

/// The pattern of a BY or GET.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// `#`: the element itself.
    Element,
    /// A pattern without a star, which has no value.
    Nothing,
    /// The key with the element in the place of the star, or a field of that key.
    Keys { before: Vec<u8>, after: Vec<u8>, field: Option<Vec<u8>> },
}

impl Pattern {
    /// Parses a pattern like C: the parts up to the star, and from there up to the arrow, end at a zero byte.
    fn parse(text: &[u8]) -> Pattern {
        let until_zero = |text: &[u8]| text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let head = &text[..until_zero(text)];
        if head == b"#" {
            return Pattern::Element;
        }
        let Some(star) = head.iter().position(|byte| *byte == b'*') else { return Pattern::Nothing };
        let rest = &text[star + 1..];
        let searched = &rest[..until_zero(rest)];
        let arrow = searched.windows(2).position(|pair| pair == b"->");
        // An arrow that ends the pattern is a part of the name.
        let arrow = arrow.filter(|arrow| arrow + 2 < searched.len());
        let (after, field) = match arrow {
            Some(arrow) => (&rest[..arrow], Some(rest[arrow + 2..].to_vec())),
            None => (rest, None),
        };
        Pattern::Keys { before: text[..star].to_vec(), after: after.to_vec(), field }
    }

    /// Writes the name of an element's key. Panics if the pattern has no star.
    pub(super) fn name(&self, element: &[u8], name: &mut Vec<u8>) {
        let Pattern::Keys { before, after, .. } = self else { panic!("a pattern with a star") };
        name.clear();
        name.extend_from_slice(before);
        name.extend_from_slice(element);
        name.extend_from_slice(after);
    }

    pub(super) fn field(&self) -> Option<&[u8]> {
        if let Pattern::Keys { field, .. } = self { field.as_deref() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_store::collection::{Collection, List};

    use super::*;

    fn keys(before: &str, after: &str, field: Option<&str>) -> Pattern {
        let bytes = |text: &str| text.as_bytes().to_vec();
        Pattern::Keys { before: bytes(before), after: bytes(after), field: field.map(bytes) }
    }

    #[test]
    fn the_slot_of_a_pattern_is_its_tags() {
        assert_eq!(slot_of_pattern(b"{foo}w_*"), Some(slot_of(b"foo")));
        assert_eq!(slot_of_pattern(b"plain"), Some(slot_of(b"plain")));
        for pattern in [&b"w_*"[..], b"{f*}x", b"*{foo}", b"{}*", b"{foo*", b"\\{foo}*"] {
            assert_eq!(slot_of_pattern(pattern), None, "{}", pattern.escape_ascii());
        }
    }

    #[test]
    fn patterns_are_parsed() {
        for (text, pattern) in [
            ("#", Pattern::Element),
            ("#\0", Pattern::Element),
            ("##", Pattern::Nothing),
            ("", Pattern::Nothing),
            ("nosort", Pattern::Nothing),
            ("no\0star*", Pattern::Nothing),
            ("*", keys("", "", None)),
            ("w_*", keys("w_", "", None)),
            ("a*b*c", keys("a", "b*c", None)),
            ("o_*->f", keys("o_", "", Some("f"))),
            ("o_*x->f->g", keys("o_", "x", Some("f->g"))),
            ("f->*", keys("f->", "", None)),
            ("f->*->g", keys("f->", "", Some("g"))),
            ("o_*->", keys("o_", "->", None)),
            ("o_*->\0f", keys("o_", "->\0f", None)),
            ("o_*\0->f", keys("o_", "\0->f", None)),
            ("o_*->f\0g", keys("o_", "", Some("f\0g"))),
            ("o_*-->f", keys("o_", "-", Some("f"))),
        ] {
            assert_eq!(Pattern::parse(text.as_bytes()), pattern, "{text:?}");
        }
    }

    /// If nothing is sorted, the selected elements are known, and only their keys are locked.
    #[test]
    fn only_selected_elements_are_looked_up() {
        let mut list = List::new();
        (0..1_000).for_each(|number: u32| list.push_back(number.to_string().as_bytes()));
        let (source, keyspace) = (Source::List(list), Keyspace::new(1, 1, 0, 0));
        let gets = || vec![keys("o_", "", None)];
        let place = |number: u32| keyspace.key(0, format!("o_{number}").as_bytes()).place;
        let parsed = || Plan::parse(&Args::new(b"", &[]), true, true).expect("no options");
        for (sorts, descending, expected) in [
            (false, false, (5..8).collect::<Vec<_>>()),
            (false, true, vec![994, 993, 992]),
            (true, false, (0..1_000).collect()),
        ] {
            let plan = Plan { sorts, descending, limit: (5, 3), gets: gets(), ..parsed() };
            let mut places = Vec::new();
            plan.add_places(&source, &keyspace, 0, &mut places);
            assert!(places.into_iter().eq(expected.into_iter().map(place)), "{sorts} {descending}");
        }
    }

    #[test]
    fn limits_are_clamped_to_the_length() {
        for (limit, range) in [
            ((0, -1), 0..5),
            ((1, 2), 1..3),
            ((-3, 2), 0..2),
            ((4, 9), 4..5),
            ((5, 1), 5..5),
            ((9, -1), 5..5),
            ((0, 0), 0..0),
            ((i64::MAX, i64::MAX), 5..5),
            ((2, i64::MAX), 2..5),
            ((i64::MIN, i64::MIN), 0..5),
        ] {
            let plan = Plan { limit, ..Plan::parse(&Args::new(b"", &[]), true, true).expect("no options") };
            assert_eq!(plan.range(5), range, "{limit:?}");
        }
    }
}
