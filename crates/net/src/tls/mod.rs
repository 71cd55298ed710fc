//! TLS: reads and checks the files of the `tls-*` directives as a whole, and encrypts connections with them.
//!
//! The present certificates, keys and choices are [`Contexts`], a value that is replaced as a whole. Errors
//! in a file are found while the new value is made, so a mistake leaves the old value in force. A connection
//! keeps the value with which it began: new files hold for later connections, and sessions made under the old
//! files are not resumed.
//!
//! The protocol itself is rustls', with ring's ciphers. Further choices of OpenSSL are refused by name, not
//! ignored in silence ([`choices`]).

mod certificate;
mod choices;
mod files;
mod pace;
mod sessions;
mod stream;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{RwLock, RwLockWriteGuard};
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

pub use certificate::{CertificateInfo, users};
use evenkeel_config::{AuthClients, Settings};
pub use pace::Pace;
use sessions::Sessions;
pub use stream::TlsStream;
pub use verify::AnyName;

/// Configurations for new connections.
pub struct Contexts {
    /// For connections from clients.
    pub server: Arc<ServerConfig>,
    /// The same for HTTP, of which the client may choose version 2 or 1.1.
    pub http: Arc<ServerConfig>,
    /// For connections to other servers.
    pub client: Arc<ClientConfig>,
    pub certificates: Certificates,
}

/// Information from the certificates in force, for INFO.
#[derive(Default)]
pub struct Certificates {
    pub server: Option<CertificateInfo>,
    /// From `tls-client-cert-file`.
    pub client: Option<CertificateInfo>,
    /// The authority that expires first.
    pub authority: Option<CertificateInfo>,
}

/// Whether any connection is to be encrypted.
pub fn is_wanted(settings: &Settings) -> bool {
    let is_http = settings.http_port > 0 && settings.http_tls;
    settings.tls_port > 0 || settings.tls_replication || settings.tls_cluster || is_http
}

/// Returns the files and directories of the settings, if any connection is to be encrypted.
pub fn paths(settings: &Settings) -> impl Iterator<Item = &Path> {
    let named = [
        &settings.tls_cert_file,
        &settings.tls_key_file,
        &settings.tls_client_cert_file,
        &settings.tls_client_key_file,
        &settings.tls_ca_cert_file,
        &settings.tls_ca_cert_dir,
    ];
    let is_wanted = is_wanted(settings);
    named.into_iter().filter(move |_| is_wanted).filter_map(|path| path.as_deref())
}

/// Returns all obstacles to using these settings: errors of each file, and of their combination.
pub fn faults(settings: &Settings) -> Vec<String> {
    if !is_wanted(settings) {
        return Vec::new();
    }
    let certificate = |directive, path: &Option<PathBuf>| {
        path.as_deref().and_then(|path| files::certificates(directive, path).err())
    };
    let key = |directive, path: &Option<PathBuf>, pass: &[u8]| {
        path.as_deref().and_then(|path| files::key(directive, path, pass).err())
    };
    let found = [
        choices::provider(settings).err(),
        choices::versions(settings).err(),
        roots(settings, &mut Certificates::default()).err(),
        certificate("tls-cert-file", &settings.tls_cert_file),
        key("tls-key-file", &settings.tls_key_file, &settings.tls_key_file_pass),
        certificate("tls-client-cert-file", &settings.tls_client_cert_file),
        key("tls-client-key-file", &settings.tls_client_key_file, &settings.tls_client_key_file_pass),
    ];
    let mut faults: Vec<String> = found.into_iter().flatten().collect();
    if let Err(first) = Contexts::load(settings)
        && !faults.contains(&first)
    {
        faults.push(first);
    }
    faults
}

impl Contexts {
    /// Reads all files. Errors name the directive and the reason.
    fn load(settings: &Settings) -> Result<Contexts, String> {
        let provider = Arc::new(choices::provider(settings)?);
        let versions = choices::versions(settings)?;
        let mut certificates = Certificates::default();
        let roots = roots(settings, &mut certificates)?;
        let server = server_config(settings, &provider, &versions, roots.clone(), &mut certificates)?;
        let client = client_config(settings, provider, &versions, roots, &mut certificates)?;
        let mut http = server.clone();
        http.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Contexts {
            server: Arc::new(server),
            http: Arc::new(http),
            client: Arc::new(client),
            certificates,
        })
    }
}

/// Returns the trusted authorities.
fn roots(settings: &Settings, certificates: &mut Certificates) -> Result<Option<Arc<RootCertStore>>, String> {
    let (file, folder) = (&settings.tls_ca_cert_file, &settings.tls_ca_cert_dir);
    if file.is_some() || folder.is_some() {
        let (roots, info) = files::authorities(file.as_deref(), folder.as_deref())?;
        certificates.authority = info;
        return Ok(Some(Arc::new(roots)));
    }
    if settings.tls_auth_clients != AuthClients::No || settings.tls_cluster || settings.tls_replication {
        return Err("Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, \
                    tls-replication or tls-auth-clients are enabled!"
            .into());
    }
    Ok(None)
}

fn server_config(
    settings: &Settings,
    provider: &Arc<CryptoProvider>,
    versions: &[&'static rustls::SupportedProtocolVersion],
    roots: Option<Arc<RootCertStore>>,
    certificates: &mut Certificates,
) -> Result<ServerConfig, String> {
    let chain = files::certificates("tls-cert-file", named(&settings.tls_cert_file, "tls-cert-file")?)?;
    certificates.server = CertificateInfo::of(&chain[0]);
    let key = named(&settings.tls_key_file, "tls-key-file")?;
    let key = files::key("tls-key-file", key, &settings.tls_key_file_pass)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| error.to_string())?;
    let builder = match (settings.tls_auth_clients, roots) {
        (AuthClients::No, _) | (_, None) => builder.with_no_client_auth(),
        (who, Some(roots)) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
            let verifier = match who {
                AuthClients::Optional => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| error.to_string())?)
        }
    };
    let mut config =
        builder.with_single_cert(chain, key).map_err(|error| files::misfit("tls-cert-file", &error))?;
    config.ignore_client_order = settings.tls_prefer_server_ciphers;
    config.session_storage = if settings.tls_session_caching {
        Arc::new(Sessions::new(settings.tls_session_cache_size, settings.tls_session_cache_timeout))
    } else {
        config.send_tls13_tickets = 0;
        Arc::new(NoServerSessionStorage {})
    };
    Ok(config)
}

fn client_config(
    settings: &Settings,
    provider: Arc<CryptoProvider>,
    versions: &[&'static rustls::SupportedProtocolVersion],
    roots: Option<Arc<RootCertStore>>,
    certificates: &mut Certificates,
) -> Result<ClientConfig, String> {
    let (cert, key, pass) = match (&settings.tls_client_cert_file, &settings.tls_client_key_file) {
        (Some(cert), Some(key)) => (cert.as_path(), key.as_path(), &settings.tls_client_key_file_pass),
        (Some(_), None) => return Err("tls-client-cert-file is set, but tls-client-key-file is not".into()),
        (None, Some(_)) => return Err("tls-client-key-file is set, but tls-client-cert-file is not".into()),
        (None, None) => {
            let cert = named(&settings.tls_cert_file, "tls-cert-file")?;
            (cert, named(&settings.tls_key_file, "tls-key-file")?, &settings.tls_key_file_pass)
        }
    };
    let roots = roots.unwrap_or_else(|| Arc::new(RootCertStore::empty()));
    let chain = files::certificates("tls-client-cert-file", cert)?;
    certificates.client = settings.tls_client_cert_file.as_ref().and_then(|_| CertificateInfo::of(&chain[0]));
    let key = files::key("tls-client-key-file", key, pass)?;
    ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyName::new(roots, provider)))
        .with_client_auth_cert(chain, key)
        .map_err(|error| files::misfit("tls-client-cert-file", &error))
}

fn named<'s>(path: &'s Option<PathBuf>, directive: &str) -> Result<&'s Path, String> {
    path.as_deref().ok_or_else(|| format!("No {directive} configured!"))
}

/// The present contexts; none if nothing is encrypted.
#[derive(Default)]
pub struct Tls {
    contexts: RwLock<Option<Arc<Contexts>>>,
    pace: parking_lot::Mutex<Pace>,
}

/// New contexts that are not in force yet. No connection begins meanwhile, so that none gets the wrong
/// contexts.
pub struct Change<'t> {
    place: RwLockWriteGuard<'t, Option<Arc<Contexts>>>,
    new: Option<Arc<Contexts>>,
}

impl Change<'_> {
    pub fn put_in_force(mut self) {
        *self.place = self.new.take();
    }
}

impl Tls {
    pub fn contexts(&self) -> Option<Arc<Contexts>> {
        self.contexts.read().clone()
    }

    /// Reads the files of these settings. On an error, nothing has changed.
    pub fn change(&self, settings: &Settings) -> Result<Change<'_>, String> {
        // First, so that a change during the read is noticed later.
        self.pace.lock().note(settings);
        let new = is_wanted(settings).then(|| Contexts::load(settings)).transpose()?.map(Arc::new);
        Ok(Change { place: self.contexts.write(), new })
    }

    /// `tls-auto-reload-interval`: reads the files again if any of them has changed, and returns the outcome.
    /// `are_current`: whether `settings` are still in force.
    pub fn look(&self, settings: &Settings, are_current: impl Fn() -> bool) -> Option<Result<(), String>> {
        if !is_wanted(settings) || !self.pace.lock().is_due(settings) {
            return None;
        }
        let before = self.contexts();
        let change = match self.change(settings) {
            Ok(change) => change,
            Err(reason) => return Some(Err(reason)),
        };
        // CONFIG SET may have been faster: its contexts must stay in force, and the next check, which is
        // soon, follows its settings.
        let is_in_force = before.as_ref().map(Arc::as_ptr) == change.place.as_ref().map(Arc::as_ptr);
        if !is_in_force || !are_current() {
            self.pace.lock().forget();
            return None;
        }
        change.put_in_force();
        Some(Ok(()))
    }
}
