//! An authority, its certificates, and another authority, in a folder of their own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// `ca` has signed `server` and `client`, for localhost and 127.0.0.1; `other` is another authority. The
/// folder is removed with the value.
pub(crate) struct Certs(PathBuf);

impl Certs {
    pub(crate) fn new() -> Certs {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("evenkeel-bench-certs-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let certs = Certs(folder);
        let ca = certs.authority("ca");
        certs.authority("other");
        ["server", "client"].iter().for_each(|name| certs.issue(name, &ca));
        certs
    }

    /// Returns a path as a word of a command line.
    pub(crate) fn word(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn authority(&self, name: &str) -> Issuer<'static, KeyPair> {
        let key = KeyPair::generate().expect("a key");
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.write(name, &params.self_signed(&key).expect("a certificate").pem(), &key);
        Issuer::new(params, key)
    }

    fn issue(&self, name: &str, by: &Issuer<'_, KeyPair>) {
        let key = KeyPair::generate().expect("a key");
        self.write(name, &params(name).signed_by(&key, by).expect("a certificate").pem(), &key);
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) {
        std::fs::write(self.word(&format!("{name}.crt")), certificate).expect("it can be written");
        std::fs::write(self.word(&format!("{name}.key")), key.serialize_pem()).expect("it can be written");
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Drop for Certs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // a folder left behind does not fail the test
    }
}
