//! Certificates and keys in files, as PEM.
//!
//! Errors name the directive and the file, since an operator has no other information.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Error, RootCertStore};

use super::certificate::CertificateInfo;
use evenkeel_config::cause;

/// Most bytes of a file: all authorities of a large distribution take 300 KB.
const FILE_LEN_MAX: u64 = 16 << 20;

/// Most files read in a directory of authorities.
const FILES_MAX: usize = 10_000;

/// Returns the certificates of a file in their order: the server's own first, then its issuers.
pub(super) fn certificates(directive: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = certificates_in(&read(directive, path)?);
    let certificates = certificates.map_err(|error| at(directive, path, &error))?;
    if certificates.is_empty() {
        return Err(at(directive, path, "no certificate in PEM format found"));
    }
    Ok(certificates)
}

/// Returns the private key of a file; `pass` decrypts an encrypted key.
pub(super) fn key(directive: &str, path: &Path, pass: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    const LOCKED: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
    let bytes = read(directive, path)?;
    let text = String::from_utf8_lossy(&bytes);
    if let Some(start) = text.find(LOCKED) {
        return unlock(&text[start..], pass).map_err(|reason| at(directive, path, reason));
    }
    if text.contains("Proc-Type: 4,ENCRYPTED") {
        let reason = "the key has an obsolete encryption format, convert it with 'openssl pkcs8 -topk8'";
        return Err(at(directive, path, reason));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            at(directive, path, "no private key in PEM format found")
        }
        other => at(directive, path, &other.to_string()),
    })
}

/// Decrypts PKCS #8 with a password.
fn unlock(pem: &str, pass: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    const END: &str = "-----END ENCRYPTED PRIVATE KEY-----";
    if pass.is_empty() {
        return Err("the key is encrypted, and no password is configured");
    }
    let end = pem.find(END).ok_or("the end of the key is missing")? + END.len();
    let (_, locked) = pkcs8::SecretDocument::from_pem(&pem[..end]).map_err(|_| "not a valid PEM file")?;
    let locked = pkcs8::EncryptedPrivateKeyInfo::try_from(locked.as_bytes())
        .map_err(|_| "the encryption of the key is not supported")?;
    let key = locked.decrypt(pass).map_err(|_| "the configured password of the key is wrong")?;
    Ok(PrivateKeyDer::Pkcs8(key.as_bytes().to_vec().into()))
}

/// Returns all authorities of a file, and of all files of a directory, and the information of the authority
/// that expires first.
pub(super) fn authorities(
    file: Option<&Path>,
    folder: Option<&Path>,
) -> Result<(RootCertStore, Option<CertificateInfo>), String> {
    let (mut roots, mut all) = (RootCertStore::empty(), Vec::new());
    if let Some(file) = file {
        for certificate in certificates("tls-ca-cert-file", file)? {
            all.push(certificate.clone());
            let added = roots.add(certificate);
            added.map_err(|error| at("tls-ca-cert-file", file, &explained(&error)))?;
        }
    }
    if let Some(folder) = folder {
        let mut found = 0;
        for path in files_of(folder).map_err(|error| at("tls-ca-cert-dir", folder, &cause(&error)))? {
            // As with OpenSSL, the directory may contain other files.
            let certificates = read("tls-ca-cert-dir", &path).and_then(|bytes| certificates_in(&bytes));
            let certificates = certificates.unwrap_or_default();
            all.extend(certificates.iter().cloned());
            let (added, _) = roots.add_parsable_certificates(certificates);
            found += added;
        }
        if found == 0 {
            return Err(at("tls-ca-cert-dir", folder, "no certificate in PEM format found"));
        }
    }
    let first = CertificateInfo::first_to_expire(all.iter().map(|certificate| &certificate[..]));
    Ok((roots, first))
}

fn files_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(FILES_MAX) {
        let path = entry?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn certificates_in(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn read(directive: &str, path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| at(directive, path, &cause(&error));
    let file = File::open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(at(directive, path, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn at(directive: &str, path: &Path, reason: &str) -> String {
    format!("{directive} {}: {reason}", path.display())
}

/// Returns the reason why a certificate and its key cannot be used.
pub(super) fn misfit(directive: &str, error: &Error) -> String {
    format!("{directive}: {}", explained(error))
}

fn explained(error: &Error) -> String {
    match error {
        Error::InconsistentKeys(_) => "the private key does not match the certificate".into(),
        Error::InvalidCertificate(problem) if problem.to_string().contains("UnsupportedCertVersion") => {
            "the certificate has X.509 version 1, and version 3 is required: create it with 'openssl x509 \
             -req -extfile'"
                .into()
        }
        Error::InvalidCertificate(problem) => format!("the certificate is not usable: {problem}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes, removes and inserts bytes of a file with a certificate and its key: reading it succeeds or
    /// returns an error, and never panics.
    #[test]
    fn arbitrary_files_do_not_panic() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("signed").pem();
        let locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAAwAA==\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let whole = [certificate, key.serialize_pem(), locked.to_owned()].concat().into_bytes();
        let path = std::env::temp_dir().join(format!("evenkeel-pem-{}", std::process::id()));
        let mut state = 1_u64;
        let mut draw = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let (mut good, mut bad) = (0, 0);
        for round in 0..400 {
            let mut bytes = whole.clone();
            if round > 0 {
                for _ in 0..=draw(3) {
                    let (at, byte) = (draw(bytes.len()), draw(256) as u8);
                    match draw(3) {
                        0 => bytes[at] = byte,
                        1 => drop(bytes.drain(at..(at + draw(200)).min(bytes.len()))),
                        _ => bytes.insert(at, byte),
                    }
                }
            }
            std::fs::write(&path, &bytes).expect("it can be written");
            let results = [
                certificates("tls-cert-file", &path).map(drop),
                key_of(&path, b""),
                key_of(&path, b"secret"),
                authorities(Some(&path), None).map(drop),
            ];
            good += results.iter().filter(|result| result.is_ok()).count();
            bad += results.iter().filter(|result| result.is_err()).count();
        }
        std::fs::remove_file(&path).expect("it is there");
        assert!(good > 20 && bad > 100, "{good} {bad}");
    }

    fn key_of(path: &Path, pass: &[u8]) -> Result<(), String> {
        key("tls-key-file", path, pass).map(drop)
    }
}
