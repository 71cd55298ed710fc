//! Identifiers use the terms of the field.
//!
//! Each row of [`GLOSSARY`] is a name that the code base had for something that has a standard name. A
//! row is as narrow as it must be not to meet other meanings: `Overflow` is a file of replication, but
//! also an option of BITFIELD. Comments are not looked at, nor are strings.

use std::collections::HashMap;

use crate::lexer::TokenKind;
use crate::tree::{Tree, module_folder};
use crate::{Figure, Place, Rule};

pub const RULE: Rule = Rule {
    name: "word",
    unit: "identifiers",
    bound: 0,
    slack: 1,
    advice: "The glossary is in crates/tidy/src/words.rs.",
};

/// A name that is not to be used.
#[derive(Debug)]
pub struct Word {
    pub old: &'static str,
    pub form: Form,
    pub scope: Scope,
    /// The name to use instead.
    pub new: &'static str,
}

/// The identifiers that a word forbids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The word itself.
    Whole,
    /// Each identifier that has the word as a part, in any case: `Seat`, `seat_of`; but not `seats`.
    /// Identifiers of more than four parts are sentences, as the names of tests are, and free.
    Part,
    /// Each type, trait or variant that has the word as a part: `Outside`, `IntoOutside`; but not `outside`.
    TypePart,
    /// Each identifier that begins with the word.
    Prefix,
    /// A module's file of that name.
    Module,
}

/// The files in which a word is forbidden.
#[derive(Clone, Copy, Debug)]
pub enum Scope {
    Everywhere,
    /// All crates but the tools (`TOOLS`).
    Server,
    /// Files whose path contains this text.
    Within(&'static str),
}

/// Crates in which words of the server have other meanings.
const TOOLS: &[&str] = &["bench", "doctor", "doctor-bpf", "testkit", "tidy"];

use Form::{Module, Part, Prefix, TypePart, Whole};
use Scope::{Everywhere, Server, Within};

const fn word(old: &'static str, form: Form, scope: Scope, new: &'static str) -> Word {
    Word { old, form, scope, new }
}

#[rustfmt::skip]
pub const GLOSSARY: &[Word] = &[
    // the store
    word("Held",       Whole,    Server,                "SlotGuard"),
    word("held",       Whole,    Server,                "guard"),
    word("seat",       Part,     Everywhere,            "ThreadContext, ctx"),
    word("seats",      Part,     Everywhere,            "contexts, threads"),
    word("stroll",     Part,     Everywhere,            "GateExit"),
    word("outside",    TypePart, Server,                "HeapValue"),
    word("audience",   Part,     Everywhere,            "SlotSubscribers, subscribers"),
    word("Draft",      Whole,    Within("/journal"),    "JournalBuffer"),
    word("desk",       Part,     Everywhere,            "ReaderSlot"),
    word("Lane",       Whole,    Within("/journal"),    "WriterQueue"),
    // threads and memory
    word("rubbish",    Part,     Everywhere,            "LazyFreeThread, lazy_free"),
    word("trash",      Part,     Everywhere,            "lazy_free"),
    word("Slack",      Whole,    Server,                "AllocatorPurge"),
    word("long",       Module,   Within("/src/long"), "offload"),
    word("go_long",    Whole,    Everywhere,            "offload"),
    word("elsewhere",  Part,     Server,                "offload, offloaded"),
    word("abroad",     Part,     Everywhere,            "blocking_io"),
    word("census",     Part,     Everywhere,            "Sampler, samples"),
    word("obstacle",   Part,     Everywhere,            "blocker"),
    word("obstacles",  Part,     Everywhere,            "Blockers, blockers"),
    // clients and the network
    word("Letter",     Whole,    Server,                "PushMessage"),
    word("mail",       Part,     Everywhere,            "PushQueue, push_queue"),
    word("tunnel",     Part,     Everywhere,            "TlsStream, tls_stream"),
    word("papers",     Part,     Everywhere,            "certificate"),
    word("newcomer",   Part,     Everywhere,            "new connection"),
    word("newcomers",  Part,     Everywhere,            "new connections"),
    word("stranger",   Part,     Everywhere,            "unauthenticated client"),
    word("strangers",  Part,     Everywhere,            "unauthenticated clients"),
    word("doorstep",   Part,     Everywhere,            "accept queue"),
    word("knocking",   Part,     Everywhere,            "ready listeners"),
    word("unheard",    Part,     Everywhere,            "muted listeners"),
    word("patrol",     Part,     Everywhere,            "sweep"),
    word("Stretch",    Whole,    Server,                "ReplyChunk"),
    // commands
    word("Reach",      Whole,    Server,                "LockScope"),
    word("Tells",      Whole,    Server,                "CallPredicate"),
    word("Says",       Whole,    Server,                "ScriptFlagsFn"),
    word("told",       Part,     Server,                "notified, log_overrides"),
    word("heard",      Part,     Server,                "notified, received"),
    word("hears",      Part,     Server,                "receives"),
    word("note_",      Prefix,   Server,                "record_x, set_x, on_x"),
    word("lay_down",   Whole,    Everywhere,            "publish"),
    word("laid",       Part,     Everywhere,            "published"),
    word("figures",    Part,     Server,                "metrics, statistics"),
    // replication
    word("door",       Part,     Everywhere,            "ReplicaInbox, inbox"),
    word("Link",       Whole,    Server,                "PrimaryLink"),
    word("Wire",       Whole,    Server,                "PrimaryConnection"),
    word("Peer",       Whole,    Everywhere,            "ReplicaConnection; of tests: Reference"),
    word("Pipe",       Whole,    Server,                "SnapshotPipe"),
    word("Overflow",   Whole,    Within("/replication"), "SpillFile"),
    // modules
    word("extended",   Module,   Server,                "x87_float"),
    word("natural",    Module,   Server,                "bignum"),
    word("fresh",      Module,   Server,                "temp_file"),
    word("space",      Module,   Server,                "disk_space"),
    word("bar",        Module,   Server,                "progress_bar"),
    word("points",     Module,   Server,                "save_points"),
    word("beside",     Module,   Server,                "async_fsync"),
    word("claims",     Module,   Server,                "jobs"),
    word("supervised", Module,   Server,                "sd_notify"),
    word("serial",     Module,   Server,                "value_codec"),
];

/// Returns how often each word of the glossary is used.
pub fn measure(tree: &Tree) -> Vec<Figure> {
    count(tree, GLOSSARY)
}

fn count(tree: &Tree, glossary: &[Word]) -> Vec<Figure> {
    let mut places: Vec<Vec<Place>> = glossary.iter().map(|_| Vec::new()).collect();
    let mut known: HashMap<&str, Vec<usize>> = HashMap::new();
    for source in &tree.sources {
        let path = &*tree.files[source.file].path;
        let in_scope = |word: &Word| match word.scope {
            Everywhere => true,
            Server => !TOOLS.contains(&&*source.krate),
            Within(part) => path.contains(part),
        };
        let module = module_folder(path).rsplit('/').next().unwrap_or_default();
        for (word, places) in glossary.iter().zip(&mut places) {
            if word.form == Module && word.old == module && in_scope(word) {
                places.push(Place { file: source.file, line: 1, note: format!("module {module}") });
            }
        }
        for token in source.tokens.iter().filter(|token| token.kind == TokenKind::Name) {
            let name = tree.text(source, token);
            let words = known.entry(name).or_insert_with(|| forbidden(glossary, name));
            for &word in words.iter().filter(|&&word| in_scope(&glossary[word])) {
                places[word].push(Place { file: source.file, line: token.line, note: name.to_owned() });
            }
        }
    }
    let figure = |(word, places): (&Word, Vec<Place>)| {
        let subject = if word.form == Module { format!("mod-{}", word.old) } else { word.old.to_owned() };
        Figure { hint: format!("Use instead: {}.", word.new), ..Figure::count(&RULE, subject, places) }
    };
    glossary.iter().zip(places).map(figure).collect()
}

/// Returns the words of the glossary that an identifier contains, wherever it stands.
fn forbidden(glossary: &[Word], name: &str) -> Vec<usize> {
    let parts = parts(name);
    let has_part = |old: &str| parts.iter().any(|part| part.eq_ignore_ascii_case(old));
    let is_sentence = parts.len() > 4;
    let is_type = name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.contains(|c: char| c.is_ascii_lowercase());
    let is_forbidden = |word: &Word| match word.form {
        Whole => name == word.old,
        Part => !is_sentence && has_part(word.old),
        TypePart => is_type && has_part(word.old),
        Prefix => !is_sentence && name.starts_with(word.old),
        Module => false,
    };
    (0..glossary.len()).filter(|&word| is_forbidden(&glossary[word])).collect()
}

/// Splits an identifier at underscores and where a new word begins: `TlsStream`, `note_end`, `HTTPDoor`.
fn parts(name: &str) -> Vec<&str> {
    let bytes = name.as_bytes();
    let mut parts = Vec::new();
    let mut start = 0;
    for at in 0..=bytes.len() {
        let is_underscore = bytes.get(at) == Some(&b'_');
        let begins = at > start
            && bytes.get(at).is_some_and(u8::is_ascii_uppercase)
            && (!bytes[at - 1].is_ascii_uppercase() || bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase));
        if at == bytes.len() || is_underscore || begins {
            if at > start {
                parts.push(&name[start..at]);
            }
            start = at + usize::from(is_underscore);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which identifiers of a file a word forbids.
    #[track_caller]
    fn check(word: Word, path: &str, text: &str, found: &[&str]) {
        let figure = count(&Tree::of(&[(path, text)]), &[word]).remove(0);
        assert_eq!(figure.places.iter().map(|place| &*place.note).collect::<Vec<_>>(), found);
        assert_eq!(figure.value, found.len());
    }

    const SERVER: &str = "crates/server/src/lib.rs";

    #[test]
    fn words_are_found_in_their_form() {
        check(word("Link", Whole, Server, ""), SERVER, "Link link Links", &["Link"]);
        check(
            word("seat", Part, Server, ""),
            SERVER,
            "Seat SEAT_BITS a_seat seated TheSeat",
            &["Seat", "SEAT_BITS", "a_seat", "TheSeat"],
        );
        check(
            word("outside", TypePart, Server, ""),
            SERVER,
            "OutsideMut is_outside OUTSIDE",
            &["OutsideMut"],
        );
        check(word("note_", Prefix, Server, ""), SERVER, "note_end denote_x note", &["note_end"]);
        check(word("fresh", Module, Server, ""), "crates/a/src/b/fresh.rs", "fresh", &["module fresh"]);
        check(word("fresh", Module, Server, ""), "crates/a/src/fresh/mod.rs", "", &["module fresh"]);
    }

    #[test]
    fn comments_strings_and_sentences_are_left() {
        check(word("seat", Part, Server, ""), SERVER, "\"seat\" // seat\n/* seat */ 'seat'", &[]);
        check(word("seat", Part, Server, ""), SERVER, "fn a_seat_stays_at_the_gate() {}", &[]);
    }

    #[test]
    fn words_are_left_where_they_have_another_meaning() {
        check(word("Link", Whole, Server, ""), "crates/doctor-bpf/src/lib.rs", "Link", &[]);
        check(word("Link", Whole, Everywhere, ""), "crates/doctor-bpf/src/lib.rs", "Link", &["Link"]);
        check(word("Overflow", Whole, Within("/replication"), ""), SERVER, "Overflow", &[]);
        check(word("Overflow", Whole, Within("/server"), ""), SERVER, "Overflow", &["Overflow"]);
    }

    #[test]
    fn identifiers_fall_into_parts() {
        assert_eq!(parts("HTTPDoor2_END__of"), ["HTTP", "Door2", "END", "of"]);
        assert_eq!(parts("_x"), ["x"]);
    }

    #[test]
    fn the_subjects_of_the_glossary_differ() {
        let figures = count(&Tree::of(&[]), GLOSSARY);
        let mut subjects: Vec<_> = figures.iter().map(|figure| &figure.subject).collect();
        subjects.sort();
        assert!(subjects.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
