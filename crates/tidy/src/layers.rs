//! Crates depend downwards only.
//!
//! Dependencies of tests are free: `resp` is tested with `testkit`, which is built on `resp`.

use crate::tree::Tree;
use crate::{Figure, Place, Rule};

pub const RULE: Rule = Rule {
    name: "layer",
    unit: "dependencies that point up",
    bound: 0,
    slack: 1,
    advice: "Move the shared names into a lower crate, or hand them in as an argument or a trait. A new \
             crate gets its place in LAYERS (crates/tidy/src/layers.rs): above the crates that it uses, \
             below its users.",
};

/// A layer: crates that do not know each other, and the crates that they may use.
#[derive(Debug)]
pub struct Layer {
    pub crates: &'static [&'static str],
    pub uses: Uses,
}

#[derive(Debug)]
pub enum Uses {
    /// Every crate of a layer below.
    Below,
    /// These crates: tools must not grow into the server.
    Only(&'static [&'static str]),
}

/// The layers from the lowest to the highest, by the folders of the crates. Not all of them exist yet.
pub const LAYERS: &[Layer] = &[
    below(&["resp"]),
    below(&["rdb"]),
    below(&["slab"]),
    below(&["store"]),
    below(&["runtime"]),
    below(&["config"]),
    below(&["net"]),
    below(&["core"]),
    below(&["command"]),
    below(&["acl"]),
    below(&["client"]),
    below(&["lua"]),
    below(&["scripting"]),
    below(&["persist", "cluster"]),
    below(&["replication", "history", "http"]),
    below(&["server", "check", "top"]),
    below(&["evenkeel"]),
    // Above the product, which therefore cannot use them.
    only(&["testkit"], &["resp"]),
    only(&["bench"], &["runtime"]),
    only(&["doctor-bpf"], &[]),
    only(&["doctor"], &["doctor-bpf"]),
    only(&["pages"], &["bench", "check", "config", "doctor", "top"]),
    only(&["tidy"], &[]),
];

const fn below(crates: &'static [&'static str]) -> Layer {
    Layer { crates, uses: Uses::Below }
}

const fn only(crates: &'static [&'static str], uses: &'static [&'static str]) -> Layer {
    Layer { crates, uses: Uses::Only(uses) }
}

/// Returns, for each crate, its dependencies that do not point down.
pub fn measure(tree: &Tree) -> Vec<Figure> {
    let mut figures = Vec::new();
    for &file in &tree.manifests {
        let manifest = &tree.files[file];
        let Some(krate) = manifest.path.split('/').nth(1) else { continue };
        let mut places = Vec::new();
        if layer_of(krate).is_none() {
            let note =
                format!("crate {krate} has no layer: add \"{krate}\" to LAYERS in crates/tidy/src/layers.rs");
            places.push(Place { file, line: 1, note });
        }
        for (name, line) in dependencies(&manifest.text) {
            if layer_of(krate).is_some() && !may_use(krate, &name) {
                places.push(Place { file, line, note: format!("{krate} must not depend on {name}") });
            }
        }
        figures.push(Figure::count(&RULE, krate, places));
    }
    figures
}

fn layer_of(krate: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.crates.contains(&krate))
}

fn may_use(krate: &str, used: &str) -> bool {
    let Some(layer) = layer_of(krate) else { return false };
    match LAYERS[layer].uses {
        Uses::Below => layer_of(used).is_some_and(|lower| lower < layer),
        Uses::Only(crates) => crates.contains(&used),
    }
}

/// Returns the crates of this workspace that a manifest names as dependencies of the product or of its build,
/// by their folders, with the line of each.
fn dependencies(manifest: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut is_section = false; // of dependencies, a line each
    let mut is_table = false; // of a single dependency
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        let mut add = |package: &str| {
            let package = package.trim().trim_matches('"');
            let folder = package.strip_prefix("evenkeel-").or((package == "evenkeel").then_some(package));
            found.extend(folder.map(|folder| (folder.to_owned(), index + 1)));
        };
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or(header);
            let (section, last) = header.rsplit_once('.').unwrap_or(("", header));
            is_section = is_dependencies(last);
            is_table = is_dependencies(section.rsplit('.').next().unwrap_or(section));
            if is_table {
                add(last);
            }
        } else if (is_section || is_table) && !line.starts_with('#') {
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            if is_section {
                add(key.split('.').next().unwrap_or(key));
            }
            let renamed = if is_table && key.trim() == "package" {
                Some(value)
            } else {
                value.split_once("package").map(|(_, rest)| rest)
            };
            if let Some(package) = renamed.and_then(|rest| rest.split('"').nth(1)) {
                add(package);
            }
        }
    }
    found
}

fn is_dependencies(section: &str) -> bool {
    matches!(section, "dependencies" | "build-dependencies")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the remarks on a crate's dependencies, each with its line.
    #[track_caller]
    fn check(krate: &str, manifest: &str, remarks: &[(usize, &str)]) {
        let tree = Tree::of(&[(&format!("crates/{krate}/Cargo.toml"), manifest)]);
        let figure = measure(&tree).remove(0);
        let found: Vec<_> = figure.places.iter().map(|place| (place.line, &*place.note)).collect();
        assert_eq!(found, remarks);
        assert_eq!(figure.value, remarks.len());
    }

    #[test]
    fn a_dependency_must_point_down() {
        let up = "[dependencies]\nevenkeel-resp.workspace = true\nevenkeel-net = { workspace = true }\n";
        check("store", up, &[(3, "store must not depend on net")]);
        check("command", up, &[]);
        check("resp", "[dependencies]\nevenkeel-resp = \"1\"", &[(2, "resp must not depend on resp")]);
    }

    #[test]
    fn the_product_does_not_use_tools_nor_tools_the_server() {
        let tool = "[dependencies]\nevenkeel-testkit.workspace = true";
        check("server", tool, &[(2, "server must not depend on testkit")]);
        check("bench", "[dependencies.evenkeel]\npath = \"a\"", &[(1, "bench must not depend on evenkeel")]);
    }

    #[test]
    fn an_unknown_crate_gets_a_hint() {
        let note = "crate tier has no layer: add \"tier\" to LAYERS in crates/tidy/src/layers.rs";
        check("tier", "[dependencies]\nevenkeel-net.workspace = true", &[(1, note)]);
    }

    #[test]
    fn all_sections_but_those_of_tests_count() {
        check(
            "resp",
            "[dev-dependencies]\nevenkeel-testkit.workspace = true\n[features]\nevenkeel-net = []",
            &[],
        );
        check(
            "resp",
            "[target.'cfg(unix)'.dependencies]\nitoa = \"1\"\na = { package = \"evenkeel-net\" }\n\
             [build-dependencies]\nevenkeel = \"1\" # always\n[dependencies.b]\npackage = \"evenkeel-acl\"",
            &[
                (3, "resp must not depend on net"),
                (5, "resp must not depend on evenkeel"),
                (7, "resp must not depend on acl"),
            ],
        );
    }

    #[test]
    fn each_crate_has_a_single_layer() {
        let mut names: Vec<_> = LAYERS.iter().flat_map(|layer| layer.crates).collect();
        names.sort();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
