//! Authorities, certificates and keys for tests, in a folder of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

/// A folder with certificates and keys; removed on drop.
///
/// `ca` has signed `server`, `other`, `client`, `named` and `expired`, which has expired. Another authority
/// has signed `stranger`; `alone` is self-signed. The common name is the file's name; `named` has two URIs as
/// well.
pub(crate) struct Certs(PathBuf);

impl Certs {
    pub(crate) fn new() -> Certs {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("evenkeel-certs-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let certs = Certs(folder);
        let ca = certs.authority("ca");
        ["server", "other", "client"].iter().for_each(|name| certs.issue(name, &ca, |_| {}));
        certs.issue("expired", &ca, |params| params.not_after = date_time_ymd(2020, 1, 1));
        certs.issue("named", &ca, |params| {
            let uri = |text: &str| SanType::URI(text.try_into().expect("ASCII"));
            params.subject_alt_names.extend([uri("urn:user:first"), uri("urn:user:second")]);
        });
        let other = certs.authority("other-ca");
        certs.issue("stranger", &other, |_| {});
        let key = KeyPair::generate().expect("a key");
        let alone = params("alone").self_signed(&key).expect("a certificate");
        certs.write("alone", &alone.pem(), &key);
        certs
    }

    fn authority(&self, name: &str) -> Issuer<'static, KeyPair> {
        let key = KeyPair::generate().expect("a key");
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        self.write(name, &certificate.pem(), &key);
        Issuer::new(params, key)
    }

    fn issue(&self, name: &str, by: &Issuer<'_, KeyPair>, change: impl FnOnce(&mut CertificateParams)) {
        let key = KeyPair::generate().expect("a key");
        let mut params = params(name);
        change(&mut params);
        let certificate = params.signed_by(&key, by).expect("a certificate");
        self.write(name, &certificate.pem(), &key);
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) {
        std::fs::write(self.path(&format!("{name}.crt")), certificate).expect("it can be written");
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("it can be written");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A path as a word of a command line.
    pub(crate) fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Arguments for a server.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let named = [("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt")];
        named.iter().flat_map(|(what, name)| [format!("--tls-{what}-file"), self.word(name)]).collect()
    }

    /// Replaces a file, as tools that renew certificates do.
    pub(crate) fn replace(&self, name: &str, by: &str) {
        std::fs::copy(self.path(by), self.path("new")).expect("it can be copied");
        std::fs::rename(self.path("new"), self.path(name)).expect("it can be renamed");
    }

    /// A client that trusts `ca` and shows this certificate; no certificate if the name is empty.
    pub(crate) fn client(&self, name: &str) -> Arc<ClientConfig> {
        self.client_with(name, rustls::ALL_VERSIONS)
    }

    pub(super) fn client_with(
        &self,
        name: &str,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.path("ca.crt"))).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let builder = builder.expect("versions that there are").with_root_certificates(roots);
        if name.is_empty() {
            return Arc::new(builder.with_no_client_auth());
        }
        let chain = vec![certificate(&self.path(&format!("{name}.crt")))];
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).expect("a key");
        Arc::new(builder.with_client_auth_cert(chain, key).expect("they belong together"))
    }
}

/// The only certificate of a file.
pub(super) fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).expect("a certificate")
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Drop for Certs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // a folder left behind is no failure of the test
    }
}
