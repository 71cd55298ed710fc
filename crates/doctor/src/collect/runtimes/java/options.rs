//! Whether HotSpot may be asked to open its attach socket.
//!
//! The request is a SIGQUIT. A JVM without handler for it ends, and a JVM that was told not to be attached to
//! prints a dump into its log instead. So its signal handlers and its options are read first, and in doubt
//! nothing is sent.

use anyhow::{Result, bail, ensure};

use crate::collect::procfs;

/// SIGQUIT in the mask of caught signals.
const SIGQUIT_BIT: u64 = 1 << (libc::SIGQUIT - 1);

/// Variables from which a JVM or its launcher takes further options.
const VARIABLES: [&str; 3] = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"];

/// Options that disable attaching, or that leave SIGQUIT to the program.
const DISABLING: [&str; 3] = ["-XX:+DisableAttachMechanism", "-Xrs", "-XX:+ReduceSignalUsage"];

/// Options that name a file with further options.
const FILES: [&str; 3] = ["-XX:Flags=", "-XX:VMOptionsFile=", "-XX:+ReadVMOptionsFile"];

/// An error with the reason, if a SIGQUIT could do anything but open the socket.
pub(super) fn permit_attach(pid: i32) -> Result<()> {
    let status = procfs::read(procfs::path(pid, "status")).unwrap_or_default();
    ensure!(
        catches_sigquit(&status),
        "it was started with -Xrs, or is not ready yet: the request, a SIGQUIT, would end it"
    );
    let executable = std::fs::read_link(procfs::path(pid, "exe")).unwrap_or_default();
    let executable = executable.to_string_lossy();
    let executable = executable.trim_end_matches(" (deleted)");
    ensure!(
        executable.rsplit('/').next() == Some("java"),
        "the JVM is a part of {executable}, whose options are unknown; run `jcmd {pid} VM.version` once, if \
         the program leaves SIGQUIT to the JVM"
    );
    let words = |name| procfs::read(procfs::path(pid, name)).map(|text| words_of(&text));
    let (Some(arguments), Some(environment)) = (words("cmdline"), words("environ")) else {
        bail!("its options cannot be read: not the same user, and not root");
    };
    check_arguments(&arguments)?;
    check_environment(&environment)
}

fn words_of(text: &str) -> Vec<String> {
    text.split('\0').map(str::to_string).collect()
}

fn catches_sigquit(status: &str) -> bool {
    let mask = procfs::status_field(status, "SigCgt").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.is_some_and(|mask| mask & SIGQUIT_BIT != 0)
}

/// Checks the options of the JVM. The first argument that is no option, and no value of an option, names the
/// program; those behind it are the program's own.
fn check_arguments(arguments: &[String]) -> Result<()> {
    let mut is_value = false;
    for argument in arguments.iter().skip(1) {
        // A file of options may stand in the place of a value.
        check_option(argument)?;
        if !std::mem::take(&mut is_value) {
            if !argument.starts_with('-') {
                break;
            }
            is_value = takes_value(argument);
        }
    }
    Ok(())
}

/// Whether an option is followed by its value. Long options are taken to be: that a program's argument is
/// taken for an option does no harm.
fn takes_value(option: &str) -> bool {
    let is_long = option.starts_with("--") && !option.contains('=');
    matches!(option, "-cp" | "-classpath" | "-p") || is_long
}

fn check_environment(environment: &[String]) -> Result<()> {
    for variable in environment {
        let Some((name, value)) = variable.split_once('=') else { continue };
        if VARIABLES.contains(&name) {
            value.split_whitespace().try_for_each(check_option)?;
        }
    }
    Ok(())
}

fn check_option(option: &str) -> Result<()> {
    // Quotes are removed by the JVM.
    let option = option.trim_matches(['"', '\'']);
    ensure!(!DISABLING.contains(&option), "it was started with {option}");
    let is_file = option.starts_with('@') || FILES.iter().any(|file| option.starts_with(file));
    ensure!(!is_file, "it takes options from a file ({option}), which may disable attaching");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_catches_sigquit_is_sent_one() {
        assert!(catches_sigquit("SigIgn:\t0000000000000000\nSigCgt:\t2000000181005ccf\n"));
        assert!(!catches_sigquit("SigCgt:\t0000000100000001\n"), "-Xrs");
        assert!(!catches_sigquit("SigCgt:\n") && !catches_sigquit(""));
    }

    /// Arguments are separated by blanks.
    fn refusal(line: &str) -> Option<String> {
        let arguments: Vec<String> = line.split(' ').map(str::to_string).collect();
        check_arguments(&arguments).err().map(|error| error.to_string())
    }

    #[test]
    fn options_that_disable_attaching_are_obeyed() {
        for line in [
            "java -XX:+DisableAttachMechanism Main",
            "java -cp a.jar -XX:+DisableAttachMechanism -jar x.jar",
            "java --add-modules java.se -Xrs Main",
            "java --enable-preview -Xrs Main",
            "java -jar -Xrs x.jar",
            "java -Xmx1g @/etc/jvm.options Main",
            "java -cp @options Main",
            "java -XX:Flags=.hotspotrc Main",
        ] {
            assert!(refusal(line).is_some(), "{line}");
        }
    }

    #[test]
    fn arguments_of_the_program_are_no_options() {
        for line in [
            "java -jar x.jar @file",
            "java Main -Xrs",
            "java -cp a.jar Main @file",
            "java -m mod/Main @file",
            "java -Xmx1g -Dx=@y Main",
            "java",
        ] {
            assert_eq!(refusal(line), None, "{line}");
        }
    }

    #[test]
    fn options_of_the_environment_count() {
        let check = |text: &str| check_environment(&[text.to_string()]).is_err();
        assert!(check("JAVA_TOOL_OPTIONS=-Xmx1g \"-XX:+DisableAttachMechanism\""));
        assert!(check("JDK_JAVA_OPTIONS=@/etc/options"));
        assert!(check("_JAVA_OPTIONS=-Xrs"));
        assert!(!check("JAVA_TOOL_OPTIONS=-Xmx1g") && !check("OTHER=-Xrs") && !check("odd"));
    }
}
