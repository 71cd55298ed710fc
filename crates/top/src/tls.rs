//! TLS towards the server.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use evenkeel_net::tls::AnyName;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::options::Options;

/// Files in which distributions keep their authorities.
const SYSTEM_AUTHORITIES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Reads the files that the options name.
pub(crate) fn config(options: &Options) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let builder = if options.insecure {
        let verifier = Arc::new(AnyName::of_any_authority(provider));
        builder.dangerous().with_custom_certificate_verifier(verifier)
    } else {
        builder.with_root_certificates(authorities(options.cacert.as_deref())?)
    };
    let config = match (&options.cert, &options.key) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| at(key, &error))?;
            builder.with_client_auth_cert(certificates(cert)?, key).map_err(|error| at(cert, &error))?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

/// Makes a TLS connection over a socket; the handshake follows with the first bytes.
pub(crate) fn connect(
    config: &Arc<ClientConfig>,
    host: &str,
    socket: TcpStream,
) -> Result<TlsStream, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let connection = ClientConnection::new(config.clone(), name).map_err(|error| error.to_string())?;
    Ok(StreamOwned::new(connection, socket))
}

fn authorities(file: Option<&Path>) -> Result<RootCertStore, String> {
    let system = || SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
    let file =
        file.or_else(system).ok_or("no authorities are installed; --cacert or --insecure is needed")?;
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates(file)?);
    if added == 0 { Err(at(file, &"no certificate found")) } else { Ok(roots) }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(file).map_err(|error| at(file, &error))?;
    found.collect::<Result<_, _>>().map_err(|error| at(file, &error))
}

fn at(file: &Path, reason: &dyn std::fmt::Display) -> String {
    format!("{}: {reason}", file.display())
}
