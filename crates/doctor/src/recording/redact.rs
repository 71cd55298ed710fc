//! Removes secrets from a process's command line: passwords, ACL passwords and their hashes, tokens, and the
//! user part of URLs. Recordings and pages are attached to bug reports, and a server's command line may have
//! all of these.
//!
//! It is unknown which arguments a program takes for secrets, so names decide, and too much is removed rather
//! than too little. From an argument that names a secret, everything after the name is removed. If the name
//! stands alone, the next argument and those behind it up to the next option are removed. No diagnosis
//! depends on any of them.

const REDACTED: &str = "(redacted)";

/// Parts of the names of secrets, in lower case and with hyphens: `--requirepass`, `PGPASSWORD`, `MYSQL_PWD`,
/// `masterauth`, `REDISCLI_AUTH`, `tls-key-file-pass`.
const SECRET: [&str; 9] =
    ["pass", "pwd", "auth", "secret", "token", "credential", "api-key", "apikey", "private-key"];

/// Options whose name says too little: a password of redis-cli, and `user:password` of curl.
const PASSWORD: &str = "-a";
const USERS: [&str; 4] = ["-u", "-U", "--user", "--proxy-user"];

/// Hexadecimal digits of a SHA-256, by which an ACL rule may name a password.
const HASH_LEN: usize = 64;

/// Returns the arguments with each secret replaced by `(redacted)`.
pub(crate) fn redacted<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let (mut shown, mut last, mut is_next, mut may_follow) = (Vec::new(), "", false, false);
    for argument in arguments {
        let is_option = argument.starts_with('-');
        may_follow &= !is_option;
        if is_next || may_follow {
            is_next = false;
            shown.push(REDACTED.to_string());
            continue;
        }
        match secret_in(argument) {
            Some(at) if at == argument.len() => {
                (is_next, may_follow) = (true, true);
                shown.push(argument.to_string());
            }
            Some(at) => shown.push(format!("{}{REDACTED}", &argument[..at])),
            None => {
                is_next = argument == PASSWORD;
                shown.push(if USERS.contains(&last) { user_in(argument) } else { words_in(argument) });
            }
        }
        last = argument;
    }
    shown
}

/// Returns where a secret begins: after `password=`, or at the end if the argument is the name alone.
fn secret_in(argument: &str) -> Option<usize> {
    let plain = argument.to_ascii_lowercase().replace('_', "-");
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-.".contains(byte);
    let is_name = plain.bytes().all(|byte| is_of_name(&byte));
    let found = SECRET.iter().flat_map(|part| plain.match_indices(part));
    let ends = found.filter_map(|(at, _)| {
        let end = at + plain.as_bytes()[at..].iter().take_while(|byte| is_of_name(byte)).count();
        let rest = &argument[end..];
        let skipped = rest.len() - rest.trim_start_matches([' ', '\t', '\n', '=', ':', '"', '\'']).len();
        (if rest.is_empty() { is_name } else { skipped > 0 }).then_some(end + skipped)
    });
    ends.min()
}

/// Redacts the password of `user:password`.
fn user_in(argument: &str) -> String {
    match argument.split_once(':') {
        Some((user, rest)) if !rest.starts_with("//") => format!("{user}:{REDACTED}"),
        _ => words_in(argument),
    }
}

/// Redacts words whose form shows a secret: ACL rules with a password, and URLs with a user.
fn words_in(argument: &str) -> String {
    argument.split_inclusive(char::is_whitespace).map(word_in).collect()
}

fn word_in(word: &str) -> String {
    let (bare, space) = word.split_at(word.trim_end().len());
    let is_hash = |rest: &str| rest.len() == HASH_LEN && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mark = bare.get(..1).filter(|_| bare.len() > 1).unwrap_or("");
    let is_secret = match mark {
        ">" | "<" => true,
        "#" | "!" => is_hash(&bare[1..]),
        _ => false,
    };
    if is_secret {
        return format!("{mark}{REDACTED}{space}");
    }
    match (bare.find("://"), bare.rfind('@')) {
        (Some(scheme), Some(end)) if scheme < end => {
            format!("{}{REDACTED}{}{space}", &bare[..scheme + 3], &bare[end..])
        }
        _ => word.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments are separated by `|`.
    #[track_caller]
    fn check(line: &str, expected: &str) {
        assert_eq!(redacted(line.split('|')).join("|"), expected);
    }

    #[test]
    fn passwords_are_redacted() {
        for name in [
            "--requirepass",
            "--masterauth",
            "--primaryauth",
            "--tls-key-file-pass",
            "--tls-client-key-file-pass",
            "--REQUIREPASS",
            "--pass",
            "-a",
            "--db-password",
            "--access-token",
        ] {
            check(&format!("server|{name}|s3cret|--port|1"), &format!("server|{name}|(redacted)|--port|1"));
            check(&format!("server|{name}||--port|1"), &format!("server|{name}|(redacted)|--port|1"));
        }
        check("s|--requirepass|--odd|--port|1", "s|--requirepass|(redacted)|--port|1");
        check("s|--password=a b&c|-x", "s|--password=(redacted)|-x");
        check(
            "env|PGPASSWORD=s3cret|MYSQL_PWD=x|REDISCLI_AUTH=y|psql",
            "env|PGPASSWORD=(redacted)|MYSQL_PWD=(redacted)|REDISCLI_AUTH=(redacted)|psql",
        );
        check(
            "sentinel|--sentinel|auth-pass|main|s3cret|--port|1",
            "sentinel|--sentinel|auth-pass|(redacted)|(redacted)|--port|1",
        );
        check("java|-Dspring.redis.password=s3cret|-jar|x", "java|-Dspring.redis.password=(redacted)|-jar|x");
        check("psql|host=db password=s3cret dbname=x", "psql|host=db password=(redacted)");
        check("x|{\"port\": 1, \"password\": \"s3cret\"}", "x|{\"port\": 1, \"password\": \"(redacted)");
        check(
            "sh|-c|redis-server --port 1 --requirepass s3cret",
            "sh|-c|redis-server --port 1 --requirepass (redacted)",
        );
        check("redis-server|requirepass|s3cret", "redis-server|requirepass|(redacted)");
        check("x|--pass\u{e4}|s3cret", "x|--pass\u{e4}|s3cret"); // not a name, and no panic
    }

    #[test]
    fn user_rules_and_urls_are_redacted() {
        check("s|--user|alice|on|>s3cret|~*|+@all", "s|--user|alice|on|>(redacted)|~*|+@all");
        check(
            "s|--user|alice on >s3cret <other ~* +@all",
            "s|--user|alice on >(redacted) <(redacted) ~* +@all",
        );
        let hash = "0123456789abcdefABCDEF0123456789abcdef0123456789abcdef0123456789";
        check(&format!("s|--user|bob|#{hash}|!{hash}|#short"), "s|--user|bob|#(redacted)|!(redacted)|#short");
        check("c|-u|redis://me:s3cret@host:1/0", "c|-u|redis://(redacted)@host:1/0");
        check("c|rediss://:p@ss/word@host|x@y", "c|rediss://(redacted)@host|x@y");
        check("c|see http://host/ and redis://u:p@h ", "c|see http://host/ and redis://(redacted)@h ");
        check("curl|-u|me:s3cret|--proxy-user|me:x", "curl|-u|me:(redacted)|--proxy-user|me:(redacted)");
    }

    #[test]
    fn all_else_is_kept() {
        for line in [
            "/usr/bin/redis-server|*:6379|[cluster]",
            "redis-server *:6379",
            "evenkeel|/etc/evenkeel.conf|--port|6379|--dir|/srv/bypass/data|--save|900 1|--tls-key-file|\
             /etc/key.pem",
            "x|/etc/passwd|other|>|#|!|a://b|@|\u{fc}",
            "",
        ] {
            check(line, line);
        }
    }
}
