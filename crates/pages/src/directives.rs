//! evenkeel.conf(5): every directive, from the table that parses them.

use evenkeel_config::{DirectiveReference, reference};

use crate::roff::{Page, Span};

const EFFECTIVE: &str = "DIRECTIVES";
const FOR_TESTS: &str = "DIRECTIVES FOR TESTS";
const WITHOUT_EFFECT: &str = "DIRECTIVES WITHOUT EFFECT";

fn heading_of(directive: &DirectiveReference) -> &'static str {
    match (directive.is_hidden, directive.has_effect) {
        (true, _) => FOR_TESTS,
        (false, true) => EFFECTIVE,
        (false, false) => WITHOUT_EFFECT,
    }
}

pub(crate) fn page(date: &str) -> Page {
    let mut page = Page::new("evenkeel.conf", 5, "Configuration of evenkeel(1)", date);
    page.heading("DESCRIPTION");
    page.paragraph(
        "The file has a directive on each line: its name, and its values, separated by blanks. A value with \
         blanks is in double or single quotes. A line that begins with # is a comment. Names may be in \
         capital or small letters. A later line overrides an earlier line, unless the directive adds up.",
    );
    page.paragraph(
        "The directives are those of redis.conf and valkey.conf, and those of Evenkeel. Sizes may have a \
         unit: k, m and g are powers of 1,000; kb, mb and gb are powers of 1,024.",
    );
    page.paragraph(
        "evenkeel --check-config FILE checks a file. CONFIG SET changes a directive while the server runs, \
         and CONFIG REWRITE writes the changes into the file.",
    );
    for heading in [EFFECTIVE, FOR_TESTS, WITHOUT_EFFECT] {
        page.heading(heading);
        let members = reference().filter(|directive| heading_of(directive) == heading);
        members.for_each(|directive| entry(&mut page, &directive));
    }
    page.heading("EXAMPLES");
    page.verbatim(
        "bind 127.0.0.1 -::1\nport 6379\nmaxmemory 4gb\nmaxmemory-policy allkeys-lfu\nappendonly yes",
    );
    page.heading("SEE ALSO");
    page.paragraph("evenkeel(1)");
    page
}

fn entry(page: &mut Page, directive: &DirectiveReference) {
    let tag = [Span::Bold(directive.name), Span::Plain(", "), Span::Bold(directive.alias)];
    page.entry(if directive.alias.is_empty() { &tag[..1] } else { &tag }, &directive.summary);
    let Some(default) = directive.default else { return };
    let default = if default.is_empty() { "\"\"" } else { default };
    page.in_entry(&format!(
        "Values: {}. Default: {default}. Changes {}.",
        directive.values, directive.change
    ));
}
