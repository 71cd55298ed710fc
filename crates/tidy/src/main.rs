//! Prints the figures of the tidy rules, or lowers the limits in `ratchet.txt`.

use std::process::ExitCode;

use evenkeel_tidy::ratchet::{self, Ratchet};
use evenkeel_tidy::tree::Tree;
use evenkeel_tidy::{Figure, RULES, measure, root};

const USAGE: &str = "\
usage: evenkeel-tidy                      prints the figures and the messages of the rules
       evenkeel-tidy --update [--raise]   lowers the limits in ratchet.txt; --raise: also raises them
       evenkeel-tidy --list RULE SUBJECT  prints all places that count in a figure";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        [] => report(),
        ["--update"] => update(false),
        ["--update", "--raise"] => update(true),
        ["--list", rule, subject] => list(rule, subject),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(code) => code,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn read() -> Result<(Tree, Vec<Figure>, Ratchet), String> {
    let tree = Tree::read(&root()).map_err(|error| error.to_string())?;
    let figures = measure(&tree);
    let text = std::fs::read_to_string(root().join(ratchet::PATH)).unwrap_or_default(); // none yet: no limits
    Ok((tree, figures, Ratchet::parse(&text)?))
}

/// Prints a table for each rule, and the messages of the rules. Fails if there are any.
fn report() -> Result<ExitCode, String> {
    let (tree, figures, limits) = read()?;
    println!("product: {} lines", tree.product_lines(None));
    for rule in RULES {
        println!("\n{:<52} {:>6} {:>6} {:>6}   {}", rule.name, "value", "bound", "limit", rule.unit);
        let mut rows: Vec<_> = figures.iter().filter(|figure| figure.rule.name == rule.name).collect();
        let total = rows.len();
        rows.retain(|figure| figure.value > figure.bound || (figure.value > 0 && total < 100));
        for figure in &rows {
            let limit = limits.limit(figure).map_or(String::new(), |limit| limit.to_string());
            println!("  {:<50} {:>6} {:>6} {limit:>6}", figure.subject, figure.value, figure.bound);
        }
        if rows.len() < total {
            println!("  and {} others within their bounds", total - rows.len());
        }
    }
    let messages: Vec<_> = RULES.iter().flat_map(|rule| limits.judge(rule, &figures, &tree)).collect();
    for message in &messages {
        eprintln!("\n{message}");
    }
    Ok(if messages.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the limits that the figures allow, and prints what is still above its limit.
fn update(may_raise: bool) -> Result<ExitCode, String> {
    let (tree, figures, mut limits) = read()?;
    limits.update(&figures, may_raise);
    std::fs::write(root().join(ratchet::PATH), limits.to_text()).map_err(|error| error.to_string())?;
    let messages: Vec<_> = RULES.iter().flat_map(|rule| limits.judge(rule, &figures, &tree)).collect();
    for message in &messages {
        eprintln!("{message}\n");
    }
    Ok(if messages.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(rule: &str, subject: &str) -> Result<ExitCode, String> {
    let (tree, figures, _) = read()?;
    let mut found = figures.iter().filter(|figure| figure.rule.name == rule && figure.subject == subject);
    let figure = found.next().ok_or_else(|| format!("no rule {rule} with a subject {subject}"))?;
    for place in &figure.places {
        println!("{}", ratchet::locate(place, &tree));
    }
    Ok(ExitCode::SUCCESS)
}
