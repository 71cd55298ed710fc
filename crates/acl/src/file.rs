//! Users from files: `user` lines of the configuration, and the file that `aclfile` names.
//!
//! A file is read as a whole, and errors are reported for all its lines. With any error, nothing of the file
//! takes effect. An error about a malformed rule does not repeat the rule, unless it is about a command: the
//! rule may be a password.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::selector::UNKNOWN;
use super::{Acl, DEFAULT, User, Users, all_channels_for_new, has_spaces, join_selectors, lines};
use evenkeel_config::{Settings, Word, cause, replace_file};

/// Checks a `user` line of the configuration; `words` follow the name of the directive.
pub fn check_line(words: &[Word]) -> Result<(), String> {
    let [name, rules @ ..] = words else { return Err("Bad directive or wrong number of arguments".into()) };
    // The initial permissions of new users do not decide whether a rule is valid, except for channels, which
    // are checked at start.
    user_of(name, rules, 1, false).map(drop)
}

fn user_of(name: &[u8], rules: &[Word], number: u64, all_channels: bool) -> Result<User, String> {
    let shown = String::from_utf8_lossy(name);
    if has_spaces(name) {
        return Err(format!("Error in user declaration '{shown}': Spaces not allowed in ACL usernames"));
    }
    let mut user = User::new(name, number, all_channels);
    if name == DEFAULT {
        // As in Redis, the line replaces all permissions that the user had without it.
        user.apply(b"reset", all_channels).expect("it is a rule");
    }
    let rules = join_selectors(rules.iter().map(Vec::as_slice)).map_err(|first| {
        format!(
            "Error in user declaration '{shown}': Unmatched parenthesis in selector '{}'",
            String::from_utf8_lossy(first)
        )
    })?;
    for rule in rules {
        user.apply(&rule, all_channels).map_err(|error| {
            let rule =
                if error == UNKNOWN { format!(" '{}'", String::from_utf8_lossy(&rule)) } else { "".into() };
            format!("Error in user declaration '{shown}': rule{rule}: {error}")
        })?;
    }
    Ok(user)
}

impl Acl {
    /// Replaces all users by the configuration's. Called once, before the first client.
    pub fn load_at_start(&self, settings: &Settings) -> Result<(), String> {
        if let Some(path) = &settings.aclfile {
            if !settings.users.is_empty() {
                return Err(BOTH.into());
            }
            return self.load(path, settings).map(drop);
        }
        self.change(|users, next| {
            *users = at_start(settings, next)?;
            Ok(())
        })
    }

    /// Returns the words of `user` lines with which a start would lead to the present users.
    pub fn words_for_config(&self, settings: &Settings) -> Vec<Vec<Word>> {
        if settings.aclfile.is_some() {
            return Vec::new();
        }
        let default = default_at_start(settings).line();
        let lines = lines(&self.users()).filter(|line| *line != default).collect::<Vec<_>>();
        let words = |line: &Vec<u8>| line.split(|byte| *byte == b' ').skip(1).map(<[u8]>::to_vec).collect();
        lines.iter().map(words).collect()
    }

    /// Replaces all users by a file's, and returns the former users. The error describes every
    /// malformed line; then nothing has changed.
    pub fn load(&self, path: &Path, settings: &Settings) -> Result<Arc<Users>, String> {
        let text = std::fs::read(path).map_err(|error| {
            format!("Error loading ACLs, opening file '{}': {}", path.display(), cause(&error))
        })?;
        self.change(|users, next| {
            let before = users.clone();
            let mut numbers = Numbers { before: &before, next };
            *users = parse(&text, &path.display().to_string(), &mut numbers, all_channels_for_new(settings))?;
            Ok(Arc::new(before.clone()))
        })
    }

    /// Replaces all users by those of these lines, as [`lines`] writes them: the users of another process.
    ///
    /// # Errors
    /// A description of every line that is not valid here; then nothing has changed.
    pub fn take_over(&self, text: &[u8], settings: &Settings) -> Result<(), String> {
        self.change(|users, next| {
            let before = users.clone();
            let mut numbers = Numbers { before: &before, next };
            *users =
                parse(text, "the users of the former process", &mut numbers, all_channels_for_new(settings))?;
            Ok(())
        })
    }

    /// Writes all users into a file atomically: a crash leaves the old or the new file. Concurrent calls
    /// write one after the other, and the last call writes the newest users.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let _one_at_a_time = self.saving.lock();
        let text: Vec<u8> = lines(&self.users()).flat_map(|line| [&line[..], b"\n"].concat()).collect();
        replace_file(path, &text)
    }
}

/// Returns the default user as `requirepass` defines it.
fn default_at_start(settings: &Settings) -> User {
    let mut default = User::default_user();
    default.set_only_password(&settings.requirepass);
    default
}

/// Returns the users that `requirepass` and the `user` lines define.
fn at_start(settings: &Settings, next: &mut u64) -> Result<Users, String> {
    let mut users = Users::from([(DEFAULT.into(), Arc::new(default_at_start(settings)))]);
    for words in &settings.users {
        let (name, rules) = words.split_first().ok_or("a user without a name")?;
        let user = user_of(name, rules, number_of(name, next), all_channels_for_new(settings))?;
        users.insert(name.as_slice().into(), Arc::new(user));
    }
    Ok(users)
}

/// Returns the lines of these users; `None` if the settings are invalid.
pub fn lines_at_start(settings: &Settings) -> Option<Vec<Vec<u8>>> {
    at_start(settings, &mut 1).ok().map(|users| lines(&users).collect())
}

const BOTH: &str = "Configuring users by 'user' lines and an ACL file by 'aclfile' at the same time is \
                    invalid. This setup is very likely to lead to configuration errors and security holes, \
                    please define either an ACL file or declare users directly in the configuration file, \
                    but not both.";

/// Returns the user's number. The default user always has the same number.
fn number_of(name: &[u8], next: &mut u64) -> u64 {
    if name == DEFAULT {
        return 0;
    }
    *next += 1;
    *next - 1
}

/// The numbers of a file's users: a user that existed before keeps its number, and with it its connections.
struct Numbers<'a> {
    before: &'a Users,
    next: &'a mut u64,
}

impl Numbers<'_> {
    fn of(&mut self, name: &[u8]) -> u64 {
        self.before.get(name).map_or_else(|| number_of(name, self.next), |user| user.who.number)
    }
}

/// Returns the users of a file, and the initial default user if the file does not define it.
fn parse(text: &[u8], path: &str, numbers: &mut Numbers<'_>, all_channels: bool) -> Result<Users, String> {
    let (mut users, mut errors) = (Users::new(), String::new());
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        match parse_line(line, &format!("{path}:{}", index + 1), index + 1, &users, numbers, all_channels) {
            Ok(user) => drop(users.insert(user.who.name.clone(), Arc::new(user))),
            Err(error) => errors += &error,
        }
    }
    if !errors.is_empty() {
        return Err(errors
            + "WARNING: ACL errors detected, no change to the previously active ACL rules was performed");
    }
    users.entry(DEFAULT.into()).or_insert_with(|| Arc::new(User::default_user()));
    Ok(users)
}

fn parse_line(
    line: &[u8],
    place: &str,
    number: usize,
    users: &Users,
    numbers: &mut Numbers<'_>,
    all_channels: bool,
) -> Result<User, String> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(b"user"), Some(name)) = (words.next(), words.next()) else {
        return Err(format!("{place} should start with user keyword followed by the username. "));
    };
    let shown = String::from_utf8_lossy(name);
    if has_spaces(name) {
        return Err(format!("{place}: username '{shown}' contains invalid characters. "));
    }
    if users.contains_key(name) {
        return Err(format!("WARNING: Duplicate user '{shown}' found on line {number}. "));
    }
    let rules = join_selectors(words)
        .map_err(|_| format!("{place}: Unmatched parenthesis in selector definition. "))?;
    let mut user = User::new(name, numbers.of(name), all_channels);
    let (mut errors, mut has_other) = (String::new(), false);
    for rule in &rules {
        match user.apply(rule.trim_ascii(), all_channels) {
            Ok(()) => {}
            Err(UNKNOWN) => {
                let rule = String::from_utf8_lossy(rule);
                errors += &format!("{place}: Error in applying operation '{rule}': {UNKNOWN}. ");
            }
            // Further errors may follow from the first.
            Err(error) if !has_other => {
                has_other = true;
                errors += &format!("{place}: {error}. ");
            }
            Err(_) => {}
        }
    }
    if errors.is_empty() { Ok(user) } else { Err(errors) }
}
