//! TLS for the generator: the trusted authorities, its own certificate, and the records of a connection.
//!
//! Sessions are never resumed: each short connection pays for a whole handshake, as in most client libraries.

use std::cell::RefCell;
use std::io::{Error, ErrorKind, Read, Result as IoResult, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Most bytes sealed ahead of the socket: four records.
const SEAL_LEN: usize = 64 * 1024;
/// Bytes received at once. By default rustls takes 4 KiB, and a batch of replies would be many system calls.
const RECEIVE_LEN: usize = 64 * 1024;

thread_local! {
    static RECEIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; RECEIVE_LEN].into());
}

/// The TLS configuration shared by all connections of a run.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    config: Arc<ClientConfig>,
    /// The name that the server's certificate has to carry.
    name: ServerName<'static>,
}

/// Files in PEM, and the server's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    /// Trusted authorities; `None`: any server certificate is accepted.
    pub(crate) authorities: Option<&'a Path>,
    /// Certificate and key that the client presents to the server.
    pub(crate) own: Option<(&'a Path, &'a Path)>,
    pub(crate) name: &'a str,
}

impl Trust {
    pub(crate) fn new(files: Files<'_>) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().context("no version of TLS")?;
        let builder = match files.authorities {
            Some(path) => builder.with_root_certificates(authorities(path)?),
            None => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
            }
        };
        let mut config = match files.own {
            Some((certificate, key)) => {
                let shown = key.display();
                let key = PrivateKeyDer::from_pem_file(key).with_context(|| format!("no key in {shown}"))?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, key)
                    .with_context(|| format!("{} and {shown} cannot be used", certificate.display()))?
            }
            None => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(files.name.to_owned());
        let name =
            name.with_context(|| format!("{:?} is no name that a certificate can have", files.name))?;
        Ok(Self { config: Arc::new(config), name })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let found = CertificateDer::pem_file_iter(path).with_context(|| format!("cannot read {shown}"))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().with_context(|| format!("{shown} is damaged"))?;
    if found.is_empty() {
        bail!("{shown} holds no certificate");
    }
    Ok(found)
}

fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).with_context(|| format!("{} holds no authority", path.display()))?;
    }
    Ok(roots)
}

/// Accepts any certificate, for tests and measurements; the key must still match the certificate.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The records of a connection, over a socket that may be non-blocking. Bytes written before the handshake is
/// over are sent behind it.
pub(super) struct TlsStream {
    connection: ClientConnection,
    /// Received bytes that could not be opened yet, for lack of room for their plain bytes.
    ahead: Vec<u8>,
}

impl TlsStream {
    pub(super) fn new(trust: &Trust) -> Result<Self> {
        let mut connection = ClientConnection::new(trust.config.clone(), trust.name.clone())?;
        connection.set_buffer_limit(Some(SEAL_LEN));
        Ok(Self { connection, ahead: Vec::new() })
    }

    /// Completes the handshake over a blocking socket.
    pub(super) fn shake_hands(&mut self, socket: &mut (impl Read + Write)) -> IoResult<()> {
        while self.connection.is_handshaking() {
            self.connection.complete_io(socket)?;
        }
        Ok(())
    }

    /// Sends sealed records until there are none, or the socket takes no more.
    pub(super) fn push(&mut self, socket: &mut impl Write) -> IoResult<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes plain bytes; `WouldBlock` when the limit of unsent bytes is reached.
    pub(super) fn write(&mut self, socket: &mut impl Write, bytes: &[u8]) -> IoResult<usize> {
        loop {
            let taken = self.connection.writer().write(bytes)?;
            self.push(socket)?;
            if taken > 0 {
                return Ok(taken);
            }
            if self.connection.wants_write() || self.connection.is_handshaking() {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Returns plain bytes, as from a socket; 0 at the end. `WouldBlock` only when the socket has nothing
    /// more.
    pub(super) fn read(&mut self, socket: &mut (impl Read + Write), buffer: &mut [u8]) -> IoResult<usize> {
        loop {
            match self.connection.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.ahead.is_empty() {
                let received = RECEIVED.with_borrow_mut(|received| {
                    let size = socket.read(received)?;
                    self.open(socket, &received[..size])?;
                    Ok::<usize, Error>(size)
                });
                if received? == 0 {
                    return Ok(0); // an end without close_notify is an end like any other
                }
            } else {
                let ahead = std::mem::take(&mut self.ahead);
                self.open(socket, &ahead)?;
            }
        }
    }

    /// Opens records until plain bytes can be read, and keeps the rest.
    fn open(&mut self, socket: &mut impl Write, mut records: &[u8]) -> IoResult<()> {
        while !records.is_empty() && self.connection.wants_read() {
            self.connection.read_tls(&mut records)?;
            if let Err(error) = self.connection.process_new_packets() {
                drop(self.push(socket)); // sends the server an alert; it may be gone
                return Err(Error::new(ErrorKind::InvalidData, error));
            }
            self.push(socket)?; // the handshake's next messages
        }
        self.ahead.extend_from_slice(records);
        Ok(())
    }
}
