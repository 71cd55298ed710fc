use std::sync::Arc;

use crate::testing::random;
use evenkeel_acl::file::{check_line, lines_at_start};
use evenkeel_acl::log::{AclLog, Reason, Refusal};
use evenkeel_acl::*;
use evenkeel_command::Args;
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::table::table;
use evenkeel_config::Settings;

fn acl() -> Acl {
    Acl::new(&Settings::default())
}

fn user(rules: &str) -> User {
    let mut user = User::new(b"u", 1, false);
    for rule in rules.split_whitespace() {
        user.apply(rule.as_bytes(), false).expect("a rule");
    }
    user
}

fn check(user: &User, line: &str) -> Result<(), Denied> {
    let args = OwnedArgs::new(line.split(' ').map(str::as_bytes));
    let args: Args<'_> = args.as_args();
    let databases = Databases { current: 0, count: 16 };
    user.check(table().find_call(&args).expect("a command"), &args, databases)
}

#[test]
fn denials_name_the_selector_that_got_furthest() {
    crate::commands::install();
    let one = user("+mget ~key");
    assert_eq!(check(&one, "get key"), Err(Denied::Command));
    assert_eq!(check(&one, "mget key other"), Err(Denied::Key(2)));
    let mut two = one.clone();
    two.apply(b"(+mget ~key ~other)", false).expect("a rule");
    assert_eq!(check(&two, "mget key other"), Ok(()));
    assert_eq!(check(&two, "mget other more"), Err(Denied::Key(2)));
    assert_eq!(check(&two, "get key"), Err(Denied::Command));
    // Permissions of different selectors are not combined.
    let mut apart = user("+copy %R~a");
    apart.apply(b"(+copy %W~b)", false).expect("a rule");
    assert_eq!(check(&apart, "copy a b"), Err(Denied::Key(2)));
    assert_eq!(check(&user("+copy %R~a %W~b"), "copy a b"), Ok(()));
}

#[test]
fn unrestricted_users_are_recognised() {
    crate::commands::install();
    for (rules, is_free) in [
        ("+@all ~* &*", true),
        ("+@all ~* &* -get", false),
        ("+@all ~* &* -get +get", false),
        ("+@all ~* &* -get allcommands", true),
        ("+@all ~* &x", false),
        ("+@all %RW~* &*", false),
        ("-@all (+@all,~*,&*)", true),
    ] {
        let mut user = User::new(b"u", 1, false);
        for rule in rules.split_whitespace() {
            user.apply(rule.replace(',', " ").as_bytes(), false).expect("a rule");
        }
        assert_eq!(user.is_unrestricted(), is_free, "{rules}");
    }
}

#[test]
fn a_failed_change_changes_nothing() {
    crate::commands::install();
    let acl = acl();
    let before = (acl.generation(), acl.users());
    let failed: Result<(), &str> = acl.change(|users, _| {
        users.insert(b"ann".as_slice().into(), Arc::new(User::new(b"ann", 7, true)));
        Err("something else is wrong")
    });
    assert!(failed.is_err());
    assert_eq!(acl.generation(), before.0);
    assert!(Arc::ptr_eq(&acl.users(), &before.1));
}

#[test]
fn a_recreated_user_is_a_different_user() {
    crate::commands::install();
    let acl = acl();
    let make = || {
        let made = acl.change(|users, next| {
            *next += 1;
            let user = Arc::new(User::new(b"ann", *next, false));
            users.insert(b"ann".as_slice().into(), user.clone());
            Ok::<_, ()>(user)
        });
        made.expect("nothing fails")
    };
    let (first, second) = (make(), make());
    assert!(acl.current(&first.who).is_none());
    assert!(acl.current(&second.who).is_some());
    acl.set_default_password(b"x");
    let default = acl.default_user();
    assert!(acl.current(&User::default_user().who).is_some(), "the default user stays the same");
    assert!(default.admits(b"x") && !default.admits(b"y") && !default.admits(b""));
}

fn refusal(object: &str, now_ms: u64) -> Refusal {
    Refusal {
        reason: Reason::Command,
        context: "toplevel",
        object: object.into(),
        user: b"u".to_vec(),
        client: Vec::new(),
        now_ms,
    }
}

#[test]
fn only_the_latest_refusals_are_grouped() {
    crate::commands::install();
    let log = AclLog::default();
    let shown = || -> Vec<(String, u64, u64)> {
        let entries = log.latest(100).into_iter();
        entries.map(|one| (String::from_utf8(one.last.object).expect("text"), one.count, one.id)).collect()
    };
    (0..12).for_each(|number| log.note(refusal(&number.to_string(), 0), 100));
    log.note(refusal("3", 60_000), 100);
    log.note(refusal("0", 60_000), 100); // too many have followed
    log.note(refusal("4", 60_001), 100); // too long ago
    let first = &shown()[..3];
    assert_eq!(first, [("4".into(), 1, 13), ("0".into(), 1, 12), ("3".into(), 2, 3)]);
    assert_eq!(shown().len(), 14);
    log.note(refusal("x", 70_000), 2);
    assert_eq!(shown().len(), 2);
    log.note(refusal("y", 70_000), 0);
    assert!(shown().is_empty());
}

#[test]
fn user_lines_in_the_configuration() {
    crate::commands::install();
    let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    assert_eq!(check_line(&words("ann on +get (+set ~x)")), Ok(()));
    for (line, reason) in [
        (
            "ann +nosuch",
            "Error in user declaration 'ann': rule '+nosuch': Unknown command or category name in ACL",
        ),
        (
            "ann #secret",
            "Error in user declaration 'ann': rule: The password hash must be exactly 64 characters and \
             contain only lowercase hexadecimal characters",
        ),
        ("ann (+get", "Error in user declaration 'ann': Unmatched parenthesis in selector '(+get'"),
        ("a\tb on", "Error in user declaration 'a\tb': Spaces not allowed in ACL usernames"),
    ] {
        assert_eq!(check_line(&words(line)), Err(reason.to_owned()), "{line}");
    }
    let settings = Settings::default().with_users(vec![words("default on >x"), words("ann off")]);
    let lines: Vec<String> = lines_at_start(&settings)
        .expect("all right")
        .into_iter()
        .map(|line| String::from_utf8(line).expect("text"))
        .collect();
    assert_eq!(lines[0], "user ann off resetchannels -@all");
    assert!(lines[1].starts_with("user default on #2d711642b726b044"), "{}", lines[1]);
}

/// A selector in parentheses is written so that it is read again unchanged, whatever its patterns.
#[test]
fn selectors_with_special_patterns_are_written() {
    crate::commands::install();
    for (rules, text) in [
        ("(+set ~x))", "(\"~x)\" resetchannels -@all +set)"),
        ("(~a'b)", ""),
        ("(\"~a\\\"b\" +get)", "(\"~a\\\"b\" resetchannels -@all +get)"),
        ("(~a(b)", "(~a(b resetchannels -@all)"),
        ("(%RW~* ~x)", "(%RW~* ~x resetchannels -@all)"),
    ] {
        let mut user = User::new(b"u", 1, false);
        user.apply(rules.as_bytes(), false).expect("a rule");
        let line = String::from_utf8(user.line()).expect("text");
        let mut again = User::new(b"u", 1, false);
        let words = line.strip_prefix("user u ").expect("its name").split(' ').map(str::as_bytes);
        for rule in join_selectors(words).expect("closed") {
            again.apply(&rule, false).expect("it was written down");
        }
        assert_eq!(again.line(), user.line(), "{rules}");
        assert!(line.ends_with(text), "{line}");
    }
    let mut user = User::new(b"u", 1, false);
    assert!(user.apply(b"+select|a b", false).is_err(), "it could not be read again");
}

/// Files of arbitrary words are accepted or refused as a whole, and accepted users are written with the same
/// meaning.
#[test]
fn arbitrary_acl_files_do_not_panic() {
    crate::commands::install();
    const WORDS: &[&str] = &[
        "user",
        "ann",
        "bob",
        "default",
        " ",
        " ",
        " ",
        "\n",
        "\n",
        "\r",
        "\t",
        "on",
        "off",
        "+get",
        "-@all",
        "+@read",
        "~a*",
        "%R~b",
        "&c",
        "(",
        ")",
        "(+set ~x)",
        ">pw",
        "#",
        "nopass",
        "reset",
        "\"",
        "+nosuch",
        "\0",
        "+select|1",
        "|",
    ];
    let (mut random, folder) = (random(), std::env::temp_dir());
    let path = folder.join(format!("evenkeel-acl-fuzz-{}", std::process::id()));
    let (mut taken, acl, settings) = (0, acl(), Settings::default());
    for _ in 0..2_000 {
        let mut text: Vec<u8> = Vec::new();
        if random.chance(70) {
            text.extend_from_slice(b"user ann ");
        }
        for _ in 0..random.below(14) {
            text.extend_from_slice(random.pick(WORDS).as_bytes());
            if random.chance(5) {
                text.extend(random.bytes(4));
            }
            if random.chance(50) {
                text.push(b' ');
            }
        }
        std::fs::write(&path, &text).expect("writable");
        let before = acl.users();
        if let Err(error) = acl.load(&path, &settings) {
            assert!(error.ends_with("no change to the previously active ACL rules was performed"), "{error}");
            assert!(Arc::ptr_eq(&before, &acl.users()));
            continue;
        }
        taken += 1;
        let written: Vec<Vec<u8>> = lines(&acl.users()).collect();
        acl.save(&path).expect("writable");
        acl.load(&path, &settings).expect("what was saved can be loaded");
        assert_eq!(lines(&acl.users()).collect::<Vec<_>>(), written, "{}", text.escape_ascii());
    }
    std::fs::remove_file(&path).expect("there");
    assert!(taken > 150, "too few files are right: {taken}");
}

#[test]
fn names_of_absent_commands_are_sorted_and_name_no_command() {
    crate::commands::install();
    assert!(absent_commands().windows(2).all(|pair| pair[0] < pair[1]));
    for name in absent_commands() {
        assert!(table().find_full(name.as_bytes()).is_none(), "{name}");
    }
}
