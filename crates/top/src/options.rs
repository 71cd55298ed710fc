//! The command line of `evenkeel top`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;

/// Name of the variable with a password that redis-cli reads as well.
const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";

/// The word after the program's name by which this tool is called.
const WORD: &str = "top";

/// Shortest and longest interval.
pub(crate) const INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];

/// Show a running server in the terminal: rates, latencies, memory, workers, commands, clients
#[derive(Clone, Debug, Parser)]
#[command(name = "evenkeel top", bin_name = "evenkeel top", disable_help_flag = true)]
pub(crate) struct Options {
    /// Host of the server
    #[arg(short = 'h', long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port of the server
    #[arg(short, long, default_value_t = 6379)]
    pub(crate) port: u16,
    /// Unix socket of the server, in place of host and port
    #[arg(short, long, value_name = "PATH", conflicts_with = "tls")]
    pub(crate) socket: Option<PathBuf>,
    /// User to log in as
    #[arg(long)]
    pub(crate) user: Option<String>,
    /// Environment variable that has the password; without it, REDISCLI_AUTH
    #[arg(long, value_name = "VAR")]
    pub(crate) password_env: Option<String>,
    /// Ask for the password on the terminal, as with --user and without a variable
    #[arg(long)]
    pub(crate) askpass: bool,
    /// Connect by TLS
    #[arg(long)]
    pub(crate) tls: bool,
    /// File with the authorities that may have signed the server's certificate
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub(crate) cacert: Option<PathBuf>,
    /// File with the certificate to show to the server
    #[arg(long, value_name = "FILE", requires = "tls", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// File with the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Do not verify the server's certificate
    #[arg(long, requires = "tls")]
    pub(crate) insecure: bool,
    /// Seconds between two polls, 0.1 to 60
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print a single frame as plain text, and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let in_bounds = parsed.filter(|interval| (INTERVALS[0]..=INTERVALS[1]).contains(interval));
    in_bounds.ok_or_else(|| "not a number of seconds between 0.1 and 60".into())
}

/// Parses the arguments after the program's name. Returns `None` if they are not for this tool: the first is
/// another word, or names a file, which redis-server's command line takes for a configuration file.
pub(crate) fn parse(args: &[OsString]) -> Option<Result<Options, clap::Error>> {
    parse_unless(args, || Path::new(WORD).exists())
}

fn parse_unless(args: &[OsString], is_file: impl FnOnce() -> bool) -> Option<Result<Options, clap::Error>> {
    let is_meant = args.first().is_some_and(|first| first == WORD) && !is_file();
    is_meant.then(|| Options::try_parse_from(args))
}

impl Options {
    /// Returns the password: of the variable, or typed by the user (`ask`).
    pub(crate) fn password(
        &self,
        variable: impl Fn(&str) -> Option<String>,
        ask: impl FnOnce() -> Result<String, String>,
    ) -> Result<Option<String>, String> {
        if self.askpass {
            return ask().map(Some);
        }
        if let Some(name) = &self.password_env {
            return variable(name).map(Some).ok_or_else(|| format!("the variable {name} is not set"));
        }
        match variable(PASSWORD_VARIABLE) {
            None if self.user.is_some() => ask().map(Some),
            password => Ok(password),
        }
    }

    /// Returns the server's address, as the header shows it.
    pub(crate) fn address(&self) -> String {
        match &self.socket {
            Some(path) => path.display().to_string(),
            None if self.host.contains(':') => format!("[{}]:{}", self.host, self.port),
            None => format!("{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        parse_unless(&args, || false).expect("for this tool").map_err(|error| error.to_string())
    }

    #[test]
    fn options_have_defaults_and_bounds() {
        let options = parsed("top --interval 0.5 -h ::1").expect("valid");
        assert_eq!((options.address().as_str(), options.interval.as_millis()), ("[::1]:6379", 500));
        for refused in [
            "top --interval 0",
            "top --interval nan",
            "top --interval 61",
            "top --insecure",
            "top -s a --tls",
        ] {
            assert!(parsed(refused).is_err(), "{refused}");
        }
        assert!(parsed("top --help").expect_err("help").contains("Usage: evenkeel top"));
    }

    #[test]
    fn the_command_line_of_redis_keeps_its_meaning() {
        let args = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(parse_unless(&args("--port 7000"), || false).is_none());
        assert!(parse_unless(&args("top --port 7000"), || true).is_none(), "a configuration file");
        assert!(parse_unless(&[], || false).is_none());
    }

    #[test]
    fn the_password_has_an_order_of_sources() {
        let ask = || Ok("typed".to_owned());
        let none = |_: &str| None;
        let both = |name: &str| Some(format!("of {name}"));
        let password = |line: &str, variable: &dyn Fn(&str) -> Option<String>| {
            parsed(line).expect("valid").password(variable, ask)
        };
        assert_eq!(password("top", &none), Ok(None));
        assert_eq!(password("top", &both), Ok(Some("of REDISCLI_AUTH".into())));
        assert_eq!(password("top --user a", &none), Ok(Some("typed".into())));
        assert_eq!(password("top --user a --password-env P", &both), Ok(Some("of P".into())));
        assert_eq!(password("top --askpass", &both), Ok(Some("typed".into())));
        assert!(password("top --password-env P", &none).is_err());
    }
}
