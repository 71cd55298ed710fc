//! Files of a crate import each other in small circles only.
//!
//! A file imports another when its product code names something there: by a `use`, or by a path in the
//! code that begins with `crate`, `self`, `super`, a module below it, or a module that it has imported. A
//! name that is passed on by a `use` counts for the file that defines it: a `mod.rs` that only names the
//! parts of its folder closes no circle. Declaring a module is no import.
//!
//! Names that come from macros are not seen, and neither are methods: a file may call those of a type from
//! another file that it never names.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::lexer::{Token, TokenKind};
use crate::tree::{Source, Tree};
use crate::{Figure, Place, Rule, percent};

pub const RULE: Rule = Rule {
    name: "circle",
    unit: "percent of the product's lines",
    bound: 15,
    slack: 2,
    advice: "Let the lower file do without the name: move the name down, or hand it in as an argument or a \
             trait. Listed are the imports without which the circle would shrink most.",
};

/// Most imports that a message names.
const NAMED_MAX: usize = 8;

/// Most `use` declarations that a name is followed through.
const HOPS_MAX: usize = 8;

/// Returns, for each crate, the share of the product in its largest circle.
pub fn measure(tree: &Tree) -> Vec<Figure> {
    let product = tree.product_lines(None);
    let of_crate = |krate| {
        let graph = Graph::new(tree, krate);
        let circle = graph.largest_circle(None);
        let value = percent(graph.lines(&circle), product);
        let mut figure = Figure::new(&RULE, krate, value);
        if value > RULE.bound {
            figure.places = graph.closing_imports(&circle);
            figure.hint = format!("The circle has {} files.", circle.len());
        }
        figure
    };
    tree.crates().into_iter().map(of_crate).collect()
}

/// A `use` declaration, of a single name.
#[derive(Clone, Debug)]
struct Use {
    /// The module in which it stands.
    module: String,
    path: Vec<String>,
    /// The name that it makes known; `*` for all names of a module.
    name: String,
    line: usize,
}

/// A path in the code.
struct Mention {
    module: String,
    path: Vec<String>,
    line: usize,
}

/// The modules of a crate and the imports between their files.
struct Graph<'t> {
    sources: Vec<&'t Source>,
    paths: Vec<&'t str>,
    /// For each file, the files that it imports, with the line of the first import.
    imports: Vec<BTreeMap<usize, usize>>,
}

impl<'t> Graph<'t> {
    fn new(tree: &'t Tree, krate: &str) -> Graph<'t> {
        let is_product = |source: &&Source| source.krate == krate && source.product_lines > 0;
        let sources: Vec<&Source> = tree.sources.iter().filter(is_product).collect();
        let paths = sources.iter().map(|source| &*tree.files[source.file].path).collect();
        let has_library = sources.iter().any(|source| tree.files[source.file].path.ends_with("/src/lib.rs"));
        let read = |source: &&'t Source| Reader::new(tree, source, has_library).read();
        let parsed: Vec<_> = sources.iter().map(read).collect();
        let names = Names::new(&parsed);
        let mut imports = vec![BTreeMap::new(); sources.len()];
        for (file, (_, contents)) in parsed.iter().enumerate() {
            let uses = contents.uses.iter().map(|found| (&found.module, &found.path, found.line));
            let mentions = contents.mentions.iter().map(|found| (&found.module, &found.path, found.line));
            for (from, path, line) in uses.chain(mentions) {
                let target = names.resolve(from, path, 0);
                if let Some(target) = target.filter(|&target| target != file) {
                    let first = imports[file].entry(target).or_insert(line);
                    *first = line.min(*first);
                }
            }
        }
        Graph { sources, paths, imports }
    }

    fn lines(&self, files: &[usize]) -> usize {
        files.iter().map(|&file| self.sources[file].product_lines).sum()
    }

    /// Returns the files of the largest circle by lines, if an import is left out; empty without a circle.
    fn largest_circle(&self, without: Option<(usize, usize)>) -> Vec<usize> {
        let circles = Circles::find(&self.imports, without).into_iter().filter(|files| files.len() > 1);
        circles.max_by_key(|files| self.lines(files)).unwrap_or_default()
    }

    /// Returns the imports within a circle that hold most of it together, the strongest first.
    fn closing_imports(&self, circle: &[usize]) -> Vec<Place> {
        let members: HashSet<usize> = circle.iter().copied().collect();
        let mut found = Vec::new();
        for &file in circle {
            for (&target, &line) in self.imports[file].iter().filter(|(target, _)| members.contains(target)) {
                let rest = self.lines(&self.largest_circle(Some((file, target))));
                found.push((rest, file, line, target));
            }
        }
        found.sort();
        let full = self.lines(circle);
        let place = |(rest, file, line, target): (usize, usize, usize, usize)| Place {
            file: self.sources[file].file,
            line,
            note: format!(
                "imports {}; without it {} lines less",
                self.paths[target],
                full.saturating_sub(rest)
            ),
        };
        found.into_iter().take(NAMED_MAX).map(place).collect()
    }
}

/// The contents of a file that matter for imports.
#[derive(Default)]
struct Contents {
    uses: Vec<Use>,
    mentions: Vec<Mention>,
    /// Names of the items that the file defines, at any depth.
    items: HashSet<String>,
}

/// Finds the file in which a path ends.
struct Names<'p> {
    /// The files by the paths of their modules.
    modules: HashMap<&'p str, usize>,
    /// The `use` declarations of each module, by name.
    uses: HashMap<(&'p str, &'p str), &'p Use>,
    globs: HashMap<&'p str, Vec<&'p Use>>,
    items: Vec<&'p HashSet<String>>,
}

impl<'p> Names<'p> {
    fn new(parsed: &'p [(String, Contents)]) -> Names<'p> {
        let mut names = Names {
            modules: HashMap::new(),
            uses: HashMap::new(),
            globs: HashMap::new(),
            items: parsed.iter().map(|(_, contents)| &contents.items).collect(),
        };
        for (file, (module, contents)) in parsed.iter().enumerate() {
            names.modules.insert(module, file);
            for found in &contents.uses {
                if found.name == "*" {
                    names.globs.entry(&found.module).or_default().push(found);
                } else {
                    names.uses.insert((&found.module, &found.name), found);
                }
            }
        }
        names
    }

    /// Returns the file that a path of a module means; none if it leads out of the crate.
    fn resolve(&self, from: &str, path: &[String], hops: usize) -> Option<usize> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match &**first {
            "crate" => "crate".to_owned(),
            "self" => from.to_owned(),
            "super" => parent(from)?.to_owned(),
            name => {
                let child = format!("{from}::{name}");
                if self.modules.contains_key(&*child) {
                    child
                } else {
                    return self.follow(from, path, hops);
                }
            }
        };
        while let Some((segment, further)) = rest.split_first() {
            if segment == "super" {
                at = parent(&at)?.to_owned();
            } else {
                let child = format!("{at}::{segment}");
                if !self.modules.contains_key(&*child) {
                    break;
                }
                at = child;
            }
            rest = further;
        }
        if rest.is_empty() || rest[0] == "*" || rest[0] == "self" {
            return self.file_of(&at);
        }
        self.follow(&at, rest, hops).or_else(|| self.file_of(&at))
    }

    /// Follows the `use` declarations of a module that make the first name of a path known.
    fn follow(&self, module: &str, path: &[String], hops: usize) -> Option<usize> {
        if hops == HOPS_MAX {
            return None;
        }
        let name = &*path[0];
        if let Some(found) = self.uses.get(&(module, name)) {
            if found.path[..] == path[..1] {
                return None; // another crate of that name
            }
            let full: Vec<String> = found.path.iter().chain(&path[1..]).cloned().collect();
            return self.resolve(module, &full, hops + 1);
        }
        self.globs.get(module)?.iter().find_map(|glob| {
            let file = self.resolve(module, &glob.path, hops + 1)?;
            self.items[file].contains(name).then_some(file)
        })
    }

    /// Returns the file of a module, which may be written within the file of a module above it.
    fn file_of(&self, module: &str) -> Option<usize> {
        let mut module = module;
        loop {
            match self.modules.get(module) {
                Some(&file) => return Some(file),
                None => module = parent(module)?,
            }
        }
    }
}

fn parent(module: &str) -> Option<&str> {
    module.rsplit_once("::").map(|(parent, _)| parent)
}

/// Reads the imports of a file from its tokens.
struct Reader<'t> {
    tree: &'t Tree,
    source: &'t Source,
    /// The path of the file's module.
    module: String,
    /// The tokens of the product.
    tokens: Vec<&'t Token>,
    contents: Contents,
}

impl<'t> Reader<'t> {
    fn new(tree: &'t Tree, source: &'t Source, has_library: bool) -> Reader<'t> {
        let product = source.tokens.iter().zip(&source.tested).filter(|(_, tested)| !**tested);
        let tokens = product.map(|(token, _)| token).collect();
        let module = module_of(&tree.files[source.file].path, has_library);
        Reader { tree, source, module, tokens, contents: Contents::default() }
    }

    /// Returns the path of the file's module, and its contents.
    fn read(mut self) -> (String, Contents) {
        let mut module = self.module.clone();
        let mut depth = 0;
        let mut inline = Vec::new(); // depths at which modules within the file begin
        let mut at = 0;
        while at < self.tokens.len() {
            match self.word(at) {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if inline.last() == Some(&depth) {
                        inline.pop();
                        module.truncate(module.rfind("::").unwrap_or(module.len()));
                    }
                }
                "mod" if self.is(at + 2, "{") => {
                    module = format!("{module}::{}", self.word(at + 1));
                    inline.push(depth);
                    depth += 1;
                    at += 2;
                }
                "use" if !self.is(at + 1, "<") => at = self.read_use(at + 1, &module),
                "fn" | "struct" | "enum" | "union" | "trait" | "const" | "static" | "type" | "mod" => {
                    let name = if self.is(at + 1, "mut") { at + 2 } else { at + 1 };
                    self.contents.items.insert(self.word(name).to_owned());
                }
                _ if self.begins_path(at) => at = self.read_path(at, &module),
                _ => {}
            }
            at += 1;
        }
        (self.module, self.contents)
    }

    fn begins_path(&self, at: usize) -> bool {
        self.tokens[at].kind == TokenKind::Name
            && self.is_separator(at + 1)
            && !(at >= 2 && self.is_separator(at - 2))
    }

    /// Reads a path; returns its last token.
    fn read_path(&mut self, mut at: usize, module: &str) -> usize {
        let line = self.tokens[at].line;
        let mut path = vec![self.word(at).to_owned()];
        while self.is_separator(at + 1)
            && self.tokens.get(at + 3).is_some_and(|next| next.kind == TokenKind::Name)
        {
            at += 3;
            path.push(self.word(at).to_owned());
        }
        self.contents.mentions.push(Mention { module: module.to_owned(), path, line });
        at
    }

    /// Reads a `use` declaration from its path on; returns its semicolon.
    fn read_use(&mut self, at: usize, module: &str) -> usize {
        let mut opened = vec![Vec::new()]; // the paths before each open brace
        let mut path: Vec<String> = Vec::new();
        let mut name = None;
        for at in at..self.tokens.len() {
            let word = self.word(at);
            let line = self.tokens[at].line;
            match word {
                ":" => {}
                "{" => opened.push(path.clone()),
                "," | "}" | ";" => {
                    let before = opened.last().cloned().unwrap_or_default();
                    if path.len() > before.len() {
                        self.add_use(module, &path, name.take(), line);
                    }
                    if word == ";" {
                        return at;
                    }
                    if word == "}" {
                        opened.pop();
                        // A group is no name of its own: the comma after it adds nothing.
                        path = opened.last().cloned().unwrap_or_default();
                    } else {
                        path = before;
                    }
                }
                "as" => name = Some(self.word(at + 1).to_owned()),
                _ if name.as_deref() == Some(word) && self.is(at - 1, "as") => {}
                _ => path.push(word.to_owned()),
            }
        }
        self.tokens.len()
    }

    fn add_use(&mut self, module: &str, path: &[String], name: Option<String>, line: usize) {
        let mut path = path.to_vec();
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let Some(name) = name.or_else(|| path.last().cloned()) else { return };
        self.contents.uses.push(Use { module: module.to_owned(), path, name, line });
    }

    fn word(&self, at: usize) -> &'t str {
        self.tokens.get(at).map_or("", |token| self.tree.text(self.source, token))
    }

    fn is(&self, at: usize, word: &str) -> bool {
        self.word(at) == word
    }

    fn is_separator(&self, at: usize) -> bool {
        self.is(at, ":") && self.is(at + 1, ":") && self.tokens[at].span.end == self.tokens[at + 1].span.start
    }
}

/// Returns the path of a file's module: `crate::a::b`. Nothing leads to a `main.rs` beside a library.
fn module_of(path: &str, has_library: bool) -> String {
    let inner = path.split_once("/src/").map_or(path, |(_, inner)| inner);
    let inner = inner.strip_suffix(".rs").unwrap_or(inner);
    let inner = inner.strip_suffix("/mod").unwrap_or(inner);
    match inner {
        "main" if has_library => "main".to_owned(),
        "lib" | "main" => "crate".to_owned(),
        _ => format!("crate::{}", inner.replace('/', "::")),
    }
}

/// Strongly connected components, by Tarjan's algorithm ("Depth-first search and linear graph
/// algorithms", 1972).
struct Circles<'g> {
    imports: &'g [BTreeMap<usize, usize>],
    without: Option<(usize, usize)>,
    order: Vec<Option<usize>>,
    lowest: Vec<usize>,
    open: Vec<usize>,
    is_open: Vec<bool>,
    visited: usize,
    found: Vec<Vec<usize>>,
}

impl<'g> Circles<'g> {
    fn find(imports: &'g [BTreeMap<usize, usize>], without: Option<(usize, usize)>) -> Vec<Vec<usize>> {
        let files = imports.len();
        let mut circles = Circles {
            imports,
            without,
            order: vec![None; files],
            lowest: vec![0; files],
            open: Vec::new(),
            is_open: vec![false; files],
            visited: 0,
            found: Vec::new(),
        };
        for file in 0..files {
            if circles.order[file].is_none() {
                circles.visit(file);
            }
        }
        circles.found
    }

    /// Recurses as deep as the longest chain of imports: some hundred files.
    fn visit(&mut self, file: usize) {
        let order = self.visited;
        self.visited += 1;
        (self.order[file], self.lowest[file]) = (Some(order), order);
        self.open.push(file);
        self.is_open[file] = true;
        for &target in self.imports[file].keys() {
            if self.without == Some((file, target)) {
                continue;
            }
            match self.order[target] {
                None => {
                    self.visit(target);
                    self.lowest[file] = self.lowest[file].min(self.lowest[target]);
                }
                Some(seen) if self.is_open[target] => self.lowest[file] = self.lowest[file].min(seen),
                Some(_) => {}
            }
        }
        if self.lowest[file] == order {
            let mut circle = BTreeSet::new();
            while let Some(member) = self.open.pop() {
                self.is_open[member] = false;
                circle.insert(member);
                if member == file {
                    break;
                }
            }
            self.found.push(circle.into_iter().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the files of the largest circle in a crate, by their paths below `src/`.
    #[track_caller]
    fn check(files: &[(&str, &str)], circle: &[&str]) {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let tree = Tree::of(&files.iter().map(|(path, text)| (&**path, *text)).collect::<Vec<_>>());
        let graph = Graph::new(&tree, "a");
        let found = graph.largest_circle(None);
        let names: Vec<_> =
            found.iter().map(|&file| graph.paths[file].trim_start_matches("crates/a/src/")).collect();
        assert_eq!(names, circle);
    }

    #[test]
    fn files_that_import_each_other_are_seen() {
        check(&[("b.rs", "use crate::c::X;"), ("c.rs", "use crate::b::{self, d::Y, Z};")], &["b.rs", "c.rs"]);
        check(&[("b.rs", "use crate::c::X;"), ("c.rs", "fn f() { crate::b::g() }")], &["b.rs", "c.rs"]);
        check(&[("b.rs", "use super::c as d;"), ("c.rs", "use crate::{b, d};")], &["b.rs", "c.rs"]);
        check(
            &[("b.rs", "use crate::c::X;"), ("c.rs", "use crate::d::Y;"), ("d.rs", "use crate::b::Z;")],
            &["b.rs", "c.rs", "d.rs"],
        );
    }

    #[test]
    fn imports_in_a_direction_are_left() {
        check(
            &[
                ("b.rs", "use crate::c::X; use std::fmt;"),
                ("c.rs", "use crate::d;"),
                ("lib.rs", "mod b; mod c;"),
            ],
            &[],
        );
        check(&[("b.rs", "use crate::c::X;"), ("c.rs", "#[cfg(test)] mod tests { use crate::b::X; }")], &[]);
        check(&[("b.rs", "use crate::c::X;"), ("c.rs", "// crate::b\nfn f() { \"crate::b\" }")], &[]);
    }

    #[test]
    fn names_count_where_they_are_defined() {
        let folder = "mod c; mod d; pub use c::X; pub use d::*;";
        check(
            &[("b/mod.rs", folder), ("b/c.rs", "struct X;"), ("b/d.rs", "use super::X; use crate::b::c;")],
            &[],
        );
        check(
            &[
                ("b/mod.rs", folder),
                ("b/c.rs", "use super::Y; struct X;"),
                ("b/d.rs", "use super::X; struct Y;"),
            ],
            &["b/c.rs", "b/d.rs"],
        );
        check(&[("b.rs", "mod c; use c::X; struct Z;"), ("b/c.rs", "use super::Z;")], &["b.rs", "b/c.rs"]);
    }

    #[test]
    fn paths_from_imported_modules_are_seen() {
        check(
            &[
                ("b.rs", "use crate::c;"),
                ("b/e.rs", "use crate::c; fn f() { c::d::g() }"),
                ("c.rs", "mod d;"),
                ("c/d.rs", "use crate::b::e;"),
            ],
            &["b/e.rs", "c/d.rs"],
        );
    }

    #[test]
    fn modules_within_a_file_belong_to_it() {
        check(
            &[("b.rs", "mod m { use super::super::c::X; } mod n {}"), ("c.rs", "use crate::b::m::Y;")],
            &["b.rs", "c.rs"],
        );
    }

    #[test]
    fn a_large_circle_names_the_imports_that_close_it() {
        let tree = Tree::of(&[
            ("crates/a/src/b.rs", "use crate::c;\n"),
            ("crates/a/src/c.rs", "\nuse crate::b;\n"),
            ("crates/a/src/d.rs", "\n\n\n\n\n\n\n"),
        ]);
        let figure = measure(&tree).remove(0);
        assert_eq!((figure.value, figure.places.len()), (30, 2));
        assert_eq!(figure.places[1].line, 2);
        assert_eq!(figure.places[1].note, "imports crates/a/src/b.rs; without it 3 lines less");
    }
}
