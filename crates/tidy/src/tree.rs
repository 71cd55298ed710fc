//! The files that the rules look at, and the parts of Rust files that are tests.
//!
//! Test code is: files below `tests/`, `tests.rs` and `*_tests.rs`, files of modules that are declared
//! under `#[cfg(test)]`, and items under `#[cfg(test)]` or `#[test]` in any file. `cfg(any(test, …))`
//! counts as well.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::lexer::{Comment, Token, TokenKind, lex};

/// A file by its path from the root of the workspace.
#[derive(Debug)]
pub struct File {
    pub path: String,
    pub text: String,
    /// Time of the last write; messages list the files that were edited last first.
    pub modified: SystemTime,
}

/// A Rust file of a crate.
#[derive(Debug)]
pub struct Source {
    /// Index in [`Tree::files`].
    pub file: usize,
    /// Name of the crate's folder.
    pub krate: String,
    pub tokens: Vec<Token>,
    pub comments: Vec<Comment>,
    /// For each token, whether it belongs to a test.
    pub tested: Vec<bool>,
    /// Lines that are part of the product; 0 for a file outside `src` and for a file of tests.
    pub product_lines: usize,
}

/// The files of the workspace: Rust files and manifests of its crates, and documents.
#[derive(Debug)]
pub struct Tree {
    pub files: Vec<File>,
    /// The Rust files of all crates, by path.
    pub sources: Vec<Source>,
    /// Indices of `crates/*/Cargo.toml` in [`Tree::files`].
    pub manifests: Vec<usize>,
    /// Indices of the Markdown files in [`Tree::files`].
    pub documents: Vec<usize>,
}

impl Tree {
    /// Reads `crates/`, `docs/` and the documents at the root of the workspace.
    ///
    /// Errors name the file that could not be read.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(root)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                paths.push(name);
            }
        }
        list(root, "crates", &mut paths)?;
        list(root, "docs", &mut paths)?;
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let full = root.join(&path);
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
            let text = std::fs::read_to_string(&full).map_err(named)?;
            let modified = std::fs::metadata(&full).and_then(|found| found.modified()).map_err(named)?;
            files.push(File { path, text, modified });
        }
        Ok(Tree::new(files))
    }

    /// Builds a tree from files in any order.
    pub fn new(mut files: Vec<File>) -> Tree {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let chosen = |wanted: fn(&str) -> bool| -> Vec<usize> {
            (0..files.len()).filter(|&index| wanted(&files[index].path)).collect()
        };
        let manifests = chosen(|path| path.starts_with("crates/") && path.ends_with("/Cargo.toml"));
        let documents = chosen(|path| path.ends_with(".md"));
        let sources = sources(&files);
        Tree { files, sources, manifests, documents }
    }

    /// Builds a tree from paths and texts, for tests of rules.
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let file = |&(path, text): &(&str, &str)| File {
            path: path.to_owned(),
            text: text.to_owned(),
            modified: SystemTime::UNIX_EPOCH,
        };
        Tree::new(files.iter().map(file).collect())
    }

    /// Returns the text of a token of a source.
    pub fn text(&self, source: &Source, token: &Token) -> &str {
        &self.files[source.file].text[token.span.clone()]
    }

    /// Returns the names of the crates that have Rust files, in order.
    pub fn crates(&self) -> Vec<&str> {
        let names: BTreeSet<&str> = self.sources.iter().map(|source| &*source.krate).collect();
        names.into_iter().collect()
    }

    /// Returns the lines of the product: of all crates, or of a single crate.
    pub fn product_lines(&self, krate: Option<&str>) -> usize {
        let counted = self.sources.iter().filter(|source| krate.is_none_or(|name| source.krate == name));
        counted.map(|source| source.product_lines).sum()
    }
}

/// Adds the Rust files, documents and manifests below a folder.
fn list(root: &Path, folder: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{folder}/{name}");
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.starts_with('.') {
                list(root, &path, paths)?;
            }
        } else if name.ends_with(".rs") || name.ends_with(".md") || name == "Cargo.toml" {
            paths.push(path);
        }
    }
    Ok(())
}

fn sources(files: &[File]) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut test_modules = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let Some((krate, inner)) = file.path.strip_prefix("crates/").and_then(|path| path.split_once('/'))
        else {
            continue;
        };
        if !inner.ends_with(".rs") {
            continue;
        }
        let (tokens, comments) = lex(&file.text);
        let mut marks = Marks::new(&file.text, &tokens);
        marks.run();
        let folder = module_folder(&file.path);
        test_modules.extend(marks.modules.iter().map(|name| format!("{folder}/{name}")));
        let lines = if inner.starts_with("src/") { file.text.lines().count() } else { 0 };
        let product_lines = lines.saturating_sub(marks.lines);
        let tested = marks.tested;
        sources.push(Source {
            file: index,
            krate: krate.to_owned(),
            tokens,
            comments,
            tested,
            product_lines,
        });
    }
    for source in &mut sources {
        let path = &files[source.file].path;
        if is_test_by_name(path) || test_modules.iter().any(|module| is_of_module(path, module)) {
            source.product_lines = 0;
            source.tested.fill(true);
        }
    }
    sources
}

/// Returns the folder in which the modules lie that a file declares: `src/a` for `src/a.rs` and
/// `src/a/mod.rs`.
pub fn module_folder(path: &str) -> &str {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    match path.rsplit('/').next() {
        Some("mod.rs" | "lib.rs" | "main.rs") => folder,
        _ => path.strip_suffix(".rs").unwrap_or(path),
    }
}

fn is_test_by_name(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

/// Returns whether a file holds a module, named by its path without `.rs`, or a module below it.
fn is_of_module(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Finds the items of a file that are compiled for tests alone.
struct Marks<'t> {
    text: &'t str,
    tokens: &'t [Token],
    tested: Vec<bool>,
    /// Names of the modules in files of their own that are declared for tests.
    modules: Vec<&'t str>,
    /// Lines that the marked items and their attributes take.
    lines: usize,
}

impl<'t> Marks<'t> {
    fn new(text: &'t str, tokens: &'t [Token]) -> Marks<'t> {
        Marks { text, tokens, tested: vec![false; tokens.len()], modules: Vec::new(), lines: 0 }
    }

    fn run(&mut self) {
        let (mut at, mut counted) = (0, 0);
        while at < self.tokens.len() {
            let Some((inner, end)) = self.attribute(at) else {
                at += 1;
                continue;
            };
            if !self.is_for_tests(inner, end) {
                at = end;
                continue;
            }
            let is_of_file = self.is(at + 1, "!");
            let item = if is_of_file { self.tokens.len() } else { self.end_of_item(end) };
            self.tested[at..item].fill(true);
            let (first, last) = (self.tokens[at].line, self.last_line(item));
            self.lines += (last + 1).saturating_sub(first.max(counted + 1));
            counted = last;
            at = item;
        }
    }

    /// Returns the first token within an attribute at a token, and the token after it.
    fn attribute(&self, at: usize) -> Option<(usize, usize)> {
        let bracket = if self.is(at + 1, "!") { at + 2 } else { at + 1 };
        (self.is(at, "#") && self.is(bracket, "[")).then(|| (bracket + 1, self.end_of_group(bracket)))
    }

    /// Returns whether an attribute is `test`, or a `cfg` that holds in tests alone.
    fn is_for_tests(&self, inner: usize, end: usize) -> bool {
        if self.is(inner, "test") {
            return true;
        }
        self.is(inner, "cfg")
            && (inner..end).any(|at| self.is(at, "test") && !(self.is(at - 2, "not") && self.is(at - 1, "(")))
    }

    /// Returns the token after the item, field, arm or element that begins at a token.
    fn end_of_item(&mut self, mut at: usize) -> usize {
        while let Some((_, end)) = self.attribute(at) {
            at = end;
        }
        let first = self.word(at);
        let is_item = matches!(
            first,
            "pub"
                | "fn"
                | "mod"
                | "use"
                | "struct"
                | "enum"
                | "union"
                | "impl"
                | "const"
                | "static"
                | "type"
                | "trait"
                | "unsafe"
                | "extern"
                | "async"
                | "macro_rules"
                | "let"
        );
        let mut name = at + 1;
        if first == "pub" && self.is(name, "(") {
            name = self.end_of_group(name);
        }
        let is_item = is_item && !self.is(name + 1, ":");
        if let Some(module) = (at..=name).find(|&word| self.is(word, "mod") && self.is(word + 2, ";")) {
            self.modules.push(&self.text[self.tokens[module + 1].span.clone()]);
        }
        let mut angles = 0;
        while at < self.tokens.len() {
            match self.tokens[at].kind {
                TokenKind::Sign(b'(' | b'[') => at = self.end_of_group(at) - 1,
                TokenKind::Sign(b'{') => {
                    at = self.end_of_group(at) - 1;
                    if is_item {
                        return at + 1;
                    }
                }
                TokenKind::Sign(b')' | b']' | b'}') => return at,
                TokenKind::Sign(b';') => return at + 1,
                TokenKind::Sign(b'<') => angles += 1,
                TokenKind::Sign(b'>') if angles > 0 && !self.is(at - 1, "-") => angles -= 1,
                TokenKind::Sign(b',') if !is_item && angles == 0 => return at + 1,
                _ => {}
            }
            at += 1;
        }
        at
    }

    /// Returns the token after the bracket that closes the group which opens at a token.
    fn end_of_group(&self, open: usize) -> usize {
        let mut depth = 0;
        for at in open..self.tokens.len() {
            match self.tokens[at].kind {
                TokenKind::Sign(b'(' | b'[' | b'{') => depth += 1,
                TokenKind::Sign(b')' | b']' | b'}') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at + 1;
            }
        }
        self.tokens.len()
    }

    /// Returns the line on which the token before `end` ends.
    fn last_line(&self, end: usize) -> usize {
        let token = &self.tokens[end - 1];
        token.line + self.text[token.span.clone()].matches('\n').count()
    }

    fn word(&self, at: usize) -> &'t str {
        self.tokens.get(at).map_or("", |token| &self.text[token.span.clone()])
    }

    fn is(&self, at: usize, word: &str) -> bool {
        self.word(at) == word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which names of a file count as product code, and how many lines.
    #[track_caller]
    fn check(text: &str, lines: usize, product: &str) {
        let tree = Tree::of(&[("crates/a/src/lib.rs", text)]);
        let source = &tree.sources[0];
        let untested = source.tokens.iter().zip(&source.tested).filter(|(_, tested)| !**tested);
        let names: Vec<&str> = untested
            .filter(|(token, _)| token.kind == TokenKind::Name)
            .map(|(token, _)| tree.text(source, token))
            .collect();
        assert_eq!((source.product_lines, &*names.join(" ")), (lines, product));
    }

    #[test]
    fn items_of_tests_are_left_out() {
        check("fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n", 2, "fn a");
        check("#[test]\n#[ignore]\nfn a<B, C>() -> D { e; }\nfn f() {}", 1, "fn f");
        check("#[cfg(all(test, unix))]\nuse a::{b, c};\nuse d;", 1, "use d");
        check("#[cfg(not(test))]\nuse a;", 2, "cfg not test use a");
        check("#[cfg_attr(test, b)]\nuse a;", 2, "cfg_attr test b use a");
        check("#![cfg(test)]\nuse a;", 0, "");
    }

    #[test]
    fn fields_and_elements_of_tests_are_left_out() {
        check("struct A {\n#[cfg(test)]\npub b: C<D, E>,\nf: G }", 2, "struct A f G");
        check("[\n#[cfg(test)]\nb(c, d),\ne,\n#[cfg(test)]\nf]", 2, "e");
    }

    #[test]
    fn files_of_tests_are_left_out() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "#[cfg(test)]\npub(crate) mod scratch;\nmod b;"),
            ("crates/a/src/b.rs", "fn b() {}"),
            ("crates/a/src/b/more_tests.rs", "fn c() {}"),
            ("crates/a/src/b/tests.rs", "fn c() {}"),
            ("crates/a/src/scratch.rs", "fn c() {}"),
            ("crates/a/src/scratch/below.rs", "fn c() {}"),
            ("crates/a/tests/it/main.rs", "fn c() {}"),
            ("crates/a/build.rs", "fn c() {}"),
        ]);
        assert_eq!(tree.product_lines(None), 2, "the declaration of b, and b");
        assert_eq!(tree.product_lines(Some("b")), 0);
    }
}
