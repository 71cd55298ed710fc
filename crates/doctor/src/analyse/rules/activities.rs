//! R25: CPU time by its purpose: TLS handshakes, scripts, expiry, garbage collection, compression.
//!
//! The deepest function of a TLS handshake multiplies large numbers, and that of a script is the interpreter
//! of Lua: neither tells an operator what to change. So a sample belongs to the first activity below that has
//! a function or a library on its stack; the deepest functions stand as evidence. R1 then leaves these
//! samples out.

use super::functions::is_foreign;
use super::{SHARE_MIN, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Frame, Sample, is_of_redis_family};

/// An activity is more specific than a function of R1, and less than a cause that could be removed whole.
const CONFIDENCE: f64 = 0.85;
/// Part of the thread's time from which the handler of one command is a finding: below, the server runs a
/// mixture.
const HANDLER_MIN: f64 = 0.5;
/// Functions that are shown as evidence.
const DETAILS: usize = 3;

struct Activity {
    /// The subject of "takes 20% of the thread's time".
    name: &'static str,
    plural: bool,
    /// Names of functions; a name that ends with a star is a prefix.
    functions: &'static [&'static str],
    /// Starts of the names of libraries' files.
    modules: &'static [&'static str],
    next: &'static str,
}

/// The first that fits counts: a handshake inside a read of TLS is a handshake.
#[rustfmt::skip]
const ACTIVITIES: &[Activity] = &[
    Activity {
        name: "TLS handshakes",
        plural: true,
        functions: &["SSL_do_handshake", "SSL_accept", "SSL_connect", "EVP_DigestSign*", "EVP_PKEY_*",
                     "BN_mod_exp*", "ecp_nistz256*", "ossl_statem_*", "__bn_*", "bn_powerx5*", "bn_sqr*",
                     "ring_core_*__bn_*", "<rustls::server::hs*", "rustls::server::hs*",
                     "<rustls::server::tls13::ExpectFinished*", "<rustls::server::tls12::ExpectClientKx*",
                     "rustls::server::tls13::client_hello*", "crypto/tls.(*Conn).serverHandshake",
                     "crypto/tls.(*Conn).HandshakeContext", "crypto/tls.(*Conn).handshakeContext",
                     "mbedtls_ssl_handshake", "gnutls_handshake"],
        modules: &[],
        next: "Let clients keep their connections, or a pool of them; allow resumption of sessions; a \
               certificate with an elliptic curve (P-256) costs a tenth of RSA.",
    },
    Activity {
        name: "encrypting and decrypting what TLS carries",
        plural: false,
        functions: &["SSL_read*", "SSL_write*", "crypto/tls.(*Conn).Read", "crypto/tls.(*Conn).Write"],
        modules: &[],
        next: "See whether both ends agree on AES-GCM and the processor has its instructions (aes in \
               /proc/cpuinfo); plain TCP or kernel TLS where the network is trusted.",
    },
    Activity {
        name: "Lua scripts",
        plural: true,
        functions: &["luaV_execute", "lua_pcall", "lua_call", "lua_resume", "lj_BC_*", "lj_vm_*"],
        modules: &["liblua", "libluajit"],
        next: "See which scripts (SLOWLOG of a server of Redis' family), and shorten or split them: nobody \
               else is served meanwhile.",
    },
    Activity {
        name: "deleting keys whose time is over",
        plural: false,
        functions: &["activeExpireCycle", "activeExpireCycleTryExpire"],
        modules: &[],
        next: "Spread the deadlines (add a random part), and lower active-expire-effort.",
    },
    Activity {
        name: "evicting keys for maxmemory",
        plural: false,
        functions: &["performEvictions", "freeMemoryIfNeeded", "freeMemoryIfNeededAndSafe"],
        modules: &[],
        next: "Raise maxmemory, or write less: each write first has to make room.",
    },
    Activity {
        name: "defragmenting memory",
        plural: false,
        functions: &["activeDefragCycle", "computeDefragCycles", "activeDefragTimeProc"],
        modules: &[],
        next: "Lower active-defrag-cycle-max, or raise active-defrag-threshold-lower.",
    },
    Activity {
        name: "hashing passwords",
        plural: false,
        functions: &["PKCS5_PBKDF2_HMAC*", "pkcs5_pbkdf2_*", "EVP_PBE_*", "crypt_r", "bcrypt*", "_bcrypt*",
                     "argon2*", "crypto_scrypt*", "golang.org/x/crypto/bcrypt*", "SHA256CryptRounds"],
        modules: &["libcrypt.so", "libargon2"],
        next: "Keep sessions or tokens instead of checking the password each time; do it on another thread.",
    },
    Activity {
        name: "compressing",
        plural: false,
        functions: &["deflate*", "BrotliEncoder*", "ZSTD_compress*", "compress/flate.*", "compress/gzip.*",
                     "slz_rfc1951_*", "LZ4_compress*"],
        modules: &["libz.so", "libbrotli", "libzstd", "liblz4"],
        next: "Lower the level, keep compressed results, or leave small and compressed content out.",
    },
    Activity {
        name: "garbage collection",
        plural: false,
        functions: &["runtime.gcBgMarkWorker", "runtime.gcAssistAlloc*", "runtime.bgsweep",
                     "runtime.gcDrain*", "v8::internal::Heap::CollectGarbage*",
                     "v8::internal::Heap::PerformGarbageCollection*", "v8::internal::Scavenger*",
                     "v8::internal::MarkCompact*", "v8::internal::ConcurrentMarking*", "gc_collect_main",
                     "gc_collect_region", "rb_gc*", "zend_gc_collect_cycles"],
        modules: &[],
        next: "Allocate less on this path, or give the runtime more memory (GOGC and GOMEMLIMIT, \
               --max-old-space-size, -Xmx).",
    },
    Activity {
        name: "regular expressions",
        plural: true,
        functions: &["pcre2_match*", "pcre_exec", "pcre2_jit_match*", "regexp.(*Regexp).*", "onig_search",
                     "v8::internal::RegExp*", "sre_*"],
        modules: &["libpcre"],
        next: "See which pattern: one that backtracks may take exponential time.",
    },
    Activity {
        name: "reading and writing JSON",
        plural: false,
        functions: &["v8::internal::JsonParser*", "v8::internal::JsonStringif*", "encoding/json.*",
                     "scanner_call", "encoder_listencode_*", "py_scanstring", "json_object_to_json*",
                     "v8::internal::JSONParser*"],
        modules: &["libjson", "libyajl", "libjansson"],
        next: "Smaller messages, results that are kept, or another thread for large ones.",
    },
    Activity {
        name: "sorting",
        plural: false,
        functions: &["tuplesort_*", "ExecSort"],
        modules: &[],
        next: "An index in that order, or a limit; see EXPLAIN (ANALYZE, BUFFERS) and work_mem.",
    },
];

/// For each frame of the recording the activity of which it is part, as an index.
#[derive(Debug)]
pub(super) struct Named {
    of_frame: Vec<Option<usize>>,
}

impl Named {
    pub(super) fn new(view: &View<'_>) -> Named {
        let of_frame = view.recording.frames.iter().map(activity).collect();
        Named { of_frame }
    }

    /// The activity of a sample, if it has one.
    fn of(&self, view: &View<'_>, sample: &Sample) -> Option<usize> {
        let stack = &view.recording.stacks[sample.stack as usize];
        let named = stack.iter().filter_map(|&frame| self.of_frame[frame as usize]).min();
        named.or_else(|| is_handshake_of_library(view, stack).then_some(0))
    }

    /// Whether R25 has a finding for a sample.
    pub(super) fn explains(&self, view: &View<'_>, sample: &Sample, found: &[usize]) -> bool {
        self.of(view, sample).is_some_and(|activity| found.contains(&activity))
    }

    /// The activities that take at least 5% of the thread's time, with their samples.
    pub(super) fn counts(&self, view: &View<'_>) -> Vec<(usize, u64)> {
        let mut counts = vec![0; ACTIVITIES.len()];
        for sample in view.samples() {
            if let Some(activity) = self.of(view, sample) {
                counts[activity] += sample.count;
            }
        }
        let counts = counts.into_iter().enumerate();
        counts.filter(|(_, count)| view.sample_share(*count) >= SHARE_MIN).collect()
    }
}

fn activity(frame: &Frame) -> Option<usize> {
    if frame.is_kernel() {
        return None;
    }
    let is = |known: &str| match known.split_once('*') {
        Some((start, end)) => frame
            .name
            .strip_prefix(start)
            .is_some_and(|rest| end.is_empty() || rest.contains(end.trim_end_matches('*'))),
        None => frame.name == known,
    };
    ACTIVITIES.iter().position(|activity| {
        activity.functions.iter().any(|known| is(known))
            || activity.modules.iter().any(|module| frame.module.starts_with(module))
    })
}

/// OpenSSL's library of TLS without its functions for data: distributions strip the names of the others.
fn is_handshake_of_library(view: &View<'_>, stack: &[u32]) -> bool {
    stack.iter().any(|&frame| view.recording.frames[frame as usize].module.starts_with("libssl."))
}

pub(crate) fn evaluate(view: &View<'_>) -> Outcome {
    if !view.has_samples() {
        return Outcome::Unseen("the purpose of CPU time needs samples with stacks".to_string());
    }
    let named = Named::new(view);
    let mut findings: Vec<Finding> =
        named.counts(view).into_iter().map(|(index, count)| finding(view, &named, index, count)).collect();
    findings.extend(handler(view));
    Outcome::found_or(findings, || {
        "TLS, scripts, expiry, garbage collection and the like take less than 5% each".to_string()
    })
}

fn finding(view: &View<'_>, named: &Named, index: usize, count: u64) -> Finding {
    let activity = &ACTIVITIES[index];
    let share = view.sample_share(count);
    let rate = if index == 0 { accepted(view) } else { String::new() };
    let take = if activity.plural { "take" } else { "takes" };
    let name = super::functions::sentence_case(activity.name);
    let title = format!("{name} {take} {} of the thread's time{rate}", percent(share));
    let details = details(view, |sample| named.of(view, sample) == Some(index));
    let command = format!("perf record -F 199 --call-graph dwarf -p {} -- sleep 10; perf report", view.pid());
    let mut finding = Finding::new("R25", share, view.confidence(CONFIDENCE, true), title)
        .about(activity.name)
        .evidence(format!("{count} samples; deepest: {}", details.join(", ")), command)
        .next(activity.next)
        .frames(activity.functions.iter().map(|name| name.trim_end_matches('*').to_string()))
        .within(&[view.sample_error(count)]);
    // Nobody knows how much cheaper the activity can be made: at most a fifth of it is assumed to stay.
    finding.ceiling = 1.0 / (1.0 - share.min(0.99) * 0.8);
    finding
}

/// ", with 850 new connections a second", where accepts were counted.
fn accepted(view: &View<'_>) -> String {
    let accepts = view.recording.calls.iter().filter(|call| call.name.starts_with("accept"));
    let count: u64 = accepts.map(|call| call.count.unwrap_or(0).saturating_sub(call.errors)).sum();
    let rate = view.per_second(count);
    if rate < 1.0 { String::new() } else { format!(", with {rate:.0} new connections a second") }
}

/// The deepest functions of the samples that fulfil a condition, with their part of them.
fn details(view: &View<'_>, holds: impl Fn(&Sample) -> bool) -> Vec<String> {
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    let mut all = 0;
    for sample in view.samples().filter(|sample| holds(sample)) {
        all += sample.count;
        let deepest = view.frames(sample.stack).find(|frame| !frame.is_kernel());
        *counts.entry(deepest.map_or("the kernel", |frame| frame.name.as_str())).or_default() += sample.count;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let share = |count: u64| percent(count as f64 / all.max(1) as f64);
    counts.into_iter().take(DETAILS).map(|(name, count)| format!("{name} {}", share(count))).collect()
}

/// The handler of one command of Redis' family, where the server was not asked for its own count.
fn handler(view: &View<'_>) -> Option<Finding> {
    if !is_of_redis_family(&view.recording.target.name) || !view.recording.commands.is_empty() {
        return None;
    }
    let is_handler = |frame: &&Frame| {
        frame.name.ends_with("Command") && !frame.name.starts_with("process") && !is_foreign(frame)
    };
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    for sample in view.samples() {
        if let Some(handler) = view.frames(sample.stack).rev().find(is_handler) {
            *counts.entry(handler.name.as_str()).or_default() += sample.count;
        }
    }
    let (name, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let share = view.sample_share(count);
    if share < HANDLER_MIN {
        return None;
    }
    let command = name.trim_end_matches("Command").to_uppercase();
    let title = format!(
        "The command {command} takes {} of the thread's time, by its function {name}",
        percent(share)
    );
    let inside = |sample: &Sample| view.frames(sample.stack).any(|frame| frame.name == name);
    let mut finding = Finding::new("R25", share, view.confidence(CONFIDENCE, true), title)
        .about(format!("command {command}"))
        .evidence(
            format!("{count} samples; deepest: {}", details(view, inside).join(", ")),
            "redis-cli INFO commandstats; redis-cli SLOWLOG GET".to_string(),
        )
        .next("Give the doctor the server's password (--auth): its own count then tells calls and clients.")
        .frames([name.to_string()])
        .within(&[view.sample_error(count)]);
    finding.ceiling = 1.0 / (1.0 - share.min(0.99) / 2.0);
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::Recording;

    fn first(recording: &Recording) -> Finding {
        let findings = diagnose(recording).findings;
        findings.into_iter().next().expect("a finding")
    }

    #[test]
    fn a_handshake_is_named_and_not_its_arithmetic() {
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, &["main", "aeMain", "SSL_accept", "bn_mul_mont"], 1_500);
        let first = first(&recording);
        assert_eq!(first.rule, "R25");
        assert!(first.title.starts_with("TLS handshakes take "), "{}", first.title);
        assert!(first.evidence[0].what.contains("bn_mul_mont 100%"), "{}", first.evidence[0].what);
        let rules = diagnose(&recording).findings;
        let named_again =
            rules.iter().any(|finding| finding.rule == "R1" && finding.title.contains("bn_mul"));
        assert!(!named_again, "R1 leaves these samples out");
    }

    #[test]
    fn the_first_activity_that_fits_counts() {
        let named = |name: &str| {
            let (name, module) = (name.to_string(), "x".to_string());
            activity(&Frame { name, module, unnamed: None }).map(|index| ACTIVITIES[index].name)
        };
        assert_eq!(named("SSL_read_ex"), Some("encrypting and decrypting what TLS carries"));
        assert_eq!(named("ring_core_0_17_14__bn_powerx5"), Some("TLS handshakes"));
        assert_eq!(named("ring_core_0_17_14__aes_gcm"), None);
        assert_eq!(named("luaV_execute"), Some("Lua scripts"));
        assert_eq!(named("deflate_fast"), Some("compressing"));
        assert_eq!(named("crypt"), None);
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, &["main", "SSL_read", "SSL_do_handshake", "x"], 1_500);
        assert!(first(&recording).title.starts_with("TLS handshakes take "));
    }

    #[test]
    fn the_handler_of_a_command_is_named_where_the_server_was_not_asked() {
        let mut recording = golden::busy();
        golden::add_samples(
            &mut recording,
            &["main", "processCommand", "call", "keysCommand", "dictNext"],
            6_000,
        );
        let title = first(&recording).title;
        assert!(title.starts_with("The command KEYS takes "), "{title}");
        recording.target.name = "myserver".to_string();
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R25"));
    }
}
