//! `tls-protocols`, `tls-ciphers`, `tls-ciphersuites`, `tls-dh-params-file`: the choices of OpenSSL that
//! exist here.
//!
//! The names are OpenSSL's, so that existing configurations work. A list that requests an unsupported choice
//! is refused: an allowed cipher may be the only cipher that some clients support.

use rustls::SupportedProtocolVersion;
use rustls::crypto::{CryptoProvider, ring};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, SupportedCipherSuite};

use evenkeel_config::Settings;

/// Suites of TLS 1.2 by OpenSSL's names, and suites of TLS 1.3.
const CIPHERS: &[(&str, CipherSuite)] = &[
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];
const CIPHERSUITES: &[(&str, CipherSuite)] = &[
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
];

/// OpenSSL's words for lists that contain every cipher offered here.
const ALL: &[&str] = &["DEFAULT", "ALL", "HIGH", "ECDHE", "EECDH", "AEAD"];

/// Kinds of ciphers that are never offered here, so excluding them has no effect.
const NEVER: &[&str] = &[
    "aNULL", "eNULL", "NULL", "ADH", "AECDH", "EXPORT", "EXP", "LOW", "MEDIUM", "MD5", "RC2", "RC4", "DES",
    "3DES", "IDEA", "SEED", "CAMELLIA", "ARIA", "PSK", "SRP", "DSS", "kRSA", "kDHE", "DHE", "EDH", "SHA",
    "SHA1", "CBC", "SSLv3", "AESCCM", "AESCCM8",
];

/// Returns the offered versions.
pub(super) fn versions(settings: &Settings) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let (text, mut versions) = (String::from_utf8_lossy(&settings.tls_protocols), Vec::new());
    for word in text.split_ascii_whitespace() {
        versions.push(match &word.to_ascii_lowercase()[..] {
            "tlsv1.2" => &TLS12,
            "tlsv1.3" => &TLS13,
            "tlsv1" | "tlsv1.1" => {
                return Err(format!("tls-protocols: {word} is not supported, only TLSv1.2 and TLSv1.3 are"));
            }
            _ => {
                return Err(
                    "Invalid tls-protocols specified. Use a combination of 'TLSv1.2' and 'TLSv1.3'.".into()
                );
            }
        });
    }
    if versions.is_empty() {
        versions = vec![&TLS12, &TLS13];
    }
    Ok(versions)
}

/// Returns the crypto provider, with the allowed suites in order of preference.
pub(super) fn provider(settings: &Settings) -> Result<CryptoProvider, String> {
    if settings.tls_dh_params_file.is_some() {
        return Err(
            "tls-dh-params-file must be empty: only key exchange over elliptic curves is supported".into()
        );
    }
    let newer = list("tls-ciphersuites", &settings.tls_ciphersuites, CIPHERSUITES)?;
    let older = list("tls-ciphers", &settings.tls_ciphers, CIPHERS)?;
    let mut provider = ring::default_provider();
    let find =
        |wanted: &CipherSuite| provider.cipher_suites.iter().find(|suite| suite.suite() == *wanted).copied();
    let suites: Vec<SupportedCipherSuite> = newer.iter().chain(&older).filter_map(find).collect();
    provider.cipher_suites = suites;
    Ok(provider)
}

/// Parses a list as OpenSSL does: names and kinds separated by `:`, with `!` or `-` before a name to exclude.
fn list(
    directive: &str,
    word: &[u8],
    offered: &[(&'static str, CipherSuite)],
) -> Result<Vec<CipherSuite>, String> {
    let text = String::from_utf8_lossy(word);
    if text.trim().is_empty() {
        return Ok(offered.iter().map(|(_, suite)| *suite).collect());
    }
    let (mut chosen, mut banned) = (Vec::new(), Vec::new());
    let words = text.split([':', ',', ' ', ';']).filter(|word| !word.is_empty());
    for word in words {
        let (out, name) = match word.strip_prefix(['!', '-']) {
            Some(name) => (true, name),
            None => (false, word),
        };
        let found = offered.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        match found {
            Some((_, suite)) if out => banned.push(*suite),
            Some((_, suite)) => chosen.push(*suite),
            None if !out && ALL.contains(&name) => chosen.extend(offered.iter().map(|(_, suite)| *suite)),
            None if out && NEVER.contains(&name) || name == "@STRENGTH" => {}
            None => {
                let names: Vec<&str> = offered.iter().map(|(name, _)| *name).collect();
                return Err(format!(
                    "{directive}: '{word}' is not supported; supported are {}",
                    names.join(", ")
                ));
            }
        }
    }
    let mut suites = Vec::new();
    for suite in chosen.into_iter().filter(|suite| !banned.contains(suite)) {
        if !suites.contains(&suite) {
            suites.push(suite);
        }
    }
    if suites.is_empty() {
        return Err(format!("{directive}: the list leaves no cipher suite"));
    }
    Ok(suites)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ciphers(text: &str) -> Result<Vec<&'static str>, String> {
        let name = |suite: &CipherSuite| CIPHERS.iter().find(|(_, own)| own == suite).expect("one of ours").0;
        Ok(list("tls-ciphers", text.as_bytes(), CIPHERS)?.iter().map(name).collect())
    }

    #[test]
    fn every_cipher_suite_has_a_name() {
        let mut all: Vec<_> = CIPHERSUITES.iter().chain(CIPHERS).map(|(_, suite)| *suite).collect();
        let mut theirs: Vec<_> =
            ring::default_provider().cipher_suites.iter().map(|suite| suite.suite()).collect();
        all.sort_by_key(|suite| u16::from(*suite));
        theirs.sort_by_key(|suite| u16::from(*suite));
        assert_eq!(all, theirs);
    }

    #[test]
    fn lists_of_ciphers() {
        let all = ciphers("").expect("the default");
        assert_eq!(all.len(), 6);
        assert_eq!(ciphers("DEFAULT:!MEDIUM"), Ok(all.clone()));
        assert_eq!(ciphers("HIGH:!aNULL:!MD5:@STRENGTH"), Ok(all));
        let two = ["ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-RSA-AES128-GCM-SHA256"];
        assert_eq!(ciphers("ECDHE-RSA-CHACHA20-POLY1305:ecdhe-rsa-aes128-gcm-sha256"), Ok(two.to_vec()));
        assert_eq!(ciphers("ALL:!ECDHE-RSA-AES128-GCM-SHA256").expect("five").len(), 5);
        assert_eq!(ciphers(&format!("{}:{}", two[0], two[0])), Ok(two[..1].to_vec()));
    }

    #[test]
    fn unsupported_ciphers_are_named() {
        let refused = |text: &str, part: &str| {
            let error = ciphers(text).expect_err("it is refused");
            assert!(error.starts_with("tls-ciphers: ") && error.contains(part), "{error}");
        };
        refused("AES128-SHA", "'AES128-SHA' is not supported; supported are ECDHE-ECDSA-AES256-GCM-SHA384");
        refused("DEFAULT:!NOSUCH", "'!NOSUCH'");
        refused("MEDIUM", "'MEDIUM'");
        refused("ECDHE-RSA-AES128-GCM-SHA256:!ECDHE-RSA-AES128-GCM-SHA256", "leaves no cipher suite");
    }
}
