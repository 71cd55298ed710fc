//! No crate compiles the source of another.

use crate::tree::{Source, Tree};
use crate::{Figure, Place, Rule};

pub const RULE: Rule = Rule {
    name: "path",
    unit: "files of other crates that are compiled in",
    bound: 0,
    slack: 1,
    advice: "Depend on the other crate. Names that both need belong into a crate below both.",
};

/// Returns, for each crate, the `#[path]` attributes and the `include!` calls that lead out of it.
pub fn measure(tree: &Tree) -> Vec<Figure> {
    let in_crate = |krate: &str| {
        let sources = tree.sources.iter().filter(|source| source.krate == krate);
        sources.flat_map(|source| foreign_files(tree, source)).collect()
    };
    tree.crates().into_iter().map(|krate| Figure::count(&RULE, krate, in_crate(krate))).collect()
}

fn foreign_files(tree: &Tree, source: &Source) -> Vec<Place> {
    let mut places = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        let follows = |signs: [&str; 2]| {
            let next = source.tokens.get(at + 1..at + 3);
            next.is_some_and(|next| {
                next.iter().zip(signs).all(|(token, sign)| tree.text(source, token) == sign)
            })
        };
        let literal = match tree.text(source, token) {
            "path" if source.tokens.get(at + 1).is_some_and(|next| tree.text(source, next) == "=") => at + 2,
            "include" if follows(["!", "("]) => at + 3,
            _ => continue,
        };
        let Some(literal) = source.tokens.get(literal) else { continue };
        let name = tree.text(source, literal);
        let Some(name) = name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) else { continue };
        let path = resolve(&tree.files[source.file].path, name);
        if !path.starts_with(&format!("crates/{}/", source.krate)) {
            places.push(Place { file: source.file, line: token.line, note: format!("leads to {path}") });
        }
    }
    places
}

/// Returns the path that a relative name means in a file; `..` beyond the root stays.
fn resolve(file: &str, name: &str) -> String {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in name.split('/') {
        match part {
            "." | "" => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, notes: &[&str]) {
        let tree = Tree::of(&[("crates/a/src/b/c.rs", text)]);
        let figure = measure(&tree).remove(0);
        assert_eq!(figure.places.iter().map(|place| &*place.note).collect::<Vec<_>>(), notes);
    }

    #[test]
    fn files_of_other_crates_are_seen() {
        check("#[path = \"../../../d/src/e.rs\"]\nmod e;", &["leads to crates/d/src/e.rs"]);
        check("include!(\"../../../../../../f.rs\");", &["leads to ../../f.rs"]);
    }

    #[test]
    fn files_of_the_crate_are_left() {
        check("#[path = \"../../tests/it/e.rs\"]\nmod e;\ninclude!(\"./f.rs\");", &[]);
        check("include!(concat!(\"a\", \"b\"));", &[]);
    }
}
