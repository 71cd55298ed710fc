//! The working tree keeps the rules of tidy; the header of `src/lib.rs` explains them.

use std::sync::LazyLock;

use evenkeel_tidy::ratchet::{self, Ratchet};
use evenkeel_tidy::tree::Tree;
use evenkeel_tidy::{Figure, Rule, circle, layers, measure, paths, prose, root, sizes, words};

static TREE: LazyLock<(Tree, Vec<Figure>)> = LazyLock::new(|| {
    let tree = Tree::read(&root()).expect("the working tree can be read");
    let figures = measure(&tree);
    (tree, figures)
});

fn limits() -> (String, Ratchet) {
    let text = std::fs::read_to_string(root().join(ratchet::PATH)).expect("the ratchet can be read");
    let limits = Ratchet::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    (text, limits)
}

#[track_caller]
fn check(rule: &Rule) {
    let (tree, figures) = &*TREE;
    let messages = limits().1.judge(rule, figures, tree);
    assert!(messages.is_empty(), "\n{}\n", messages.join("\n\n"));
}

#[test]
fn crates_depend_downwards() {
    check(&layers::RULE);
}

#[test]
fn no_crate_is_above_a_quarter_of_the_product() {
    check(&sizes::SHARE);
}

#[test]
fn no_file_is_too_long() {
    check(&sizes::LENGTH);
}

#[test]
fn no_line_is_too_wide() {
    check(&sizes::WIDTH);
}

#[test]
fn identifiers_use_standard_terms() {
    check(&words::RULE);
}

#[test]
fn sentences_name_their_subjects() {
    check(&prose::RULE);
}

#[test]
fn no_crate_compiles_files_of_another() {
    check(&paths::RULE);
}

#[test]
fn import_circles_are_small() {
    check(&circle::RULE);
}

#[test]
fn the_ratchet_is_in_order() {
    let (text, limits) = limits();
    assert_eq!(text, limits.to_text(), "sort it: {}", ratchet::UPDATE);
}

#[test]
fn the_whole_tree_is_seen() {
    let (tree, _) = &*TREE;
    assert!(tree.sources.len() > 500, "{} Rust files", tree.sources.len());
    assert_eq!(tree.crates().len(), tree.manifests.len(), "each crate has a manifest");
    assert!(tree.documents.len() > 20, "{} documents", tree.documents.len());
    assert!(tree.product_lines(None) > 50_000, "{} lines", tree.product_lines(None));
}
