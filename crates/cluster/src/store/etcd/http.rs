//! Calls to the members of etcd, over HTTP with or without TLS.
//!
//! Each call has a connection of its own: calls are rare, and an idle connection that the other side has
//! closed would leave the fate of a transaction unknown. After a member that does not answer, the next member
//! is called.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::super::StoreError;
use super::Config;

/// Files for TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Certificates of the authorities, in PEM.
    pub ca: PathBuf,
    /// Certificate and private key of the node, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The reason why a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The request was not sent.
    NotSent(StoreError),
    /// The store, or a check, says that nothing was done.
    Refused(StoreError),
    /// The request may have had its effect, or may yet have it.
    Unknown(StoreError),
}

impl CallError {
    pub(super) fn broken(reason: &impl std::fmt::Display) -> CallError {
        CallError::Unknown(StoreError::Unreachable { reason: reason.to_string() })
    }

    /// Whether a transaction that failed so was not made, and never will be.
    pub(super) fn was_not_made(&self) -> bool {
        // A check of the header fails after a transaction that etcd has answered.
        !matches!(self, CallError::Unknown(_) | CallError::Refused(StoreError::WentBack { .. }))
    }
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> StoreError {
        match error {
            CallError::NotSent(error) | CallError::Refused(error) | CallError::Unknown(error) => error,
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A client of etcd's members.
pub(super) struct Client {
    endpoints: Vec<String>,
    /// The place of the member in use.
    current: AtomicUsize,
    tls: Option<tokio_rustls::TlsConnector>,
    user: Option<(String, String)>,
    token: Mutex<Option<String>>,
    prefix: String,
    timeout: Duration,
}

/// An answer is at most so long.
const ANSWER_MAX: usize = 256 << 20;

impl Client {
    pub(super) fn new(config: &Config) -> Result<Client, StoreError> {
        if config.endpoints.is_empty() {
            return Err(StoreError::Setting { name: "cluster-store", reason: "there is no endpoint".into() });
        }
        Ok(Client {
            endpoints: config.endpoints.clone(),
            current: AtomicUsize::new(0),
            tls: config.tls.as_ref().map(connector).transpose()?,
            user: config.user.clone(),
            token: Mutex::default(),
            prefix: config.prefix.clone(),
            timeout: config.timeout,
        })
    }

    /// Calls a function of etcd. Returns its answer, or its error.
    pub(super) async fn call(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        self.log_in_once().await?;
        match self.call_once(path, body).await {
            Err(CallError::Refused(StoreError::Permission { .. })) if self.user.is_some() => {
                // The token has expired.
                *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                self.log_in_once().await?;
                self.call_once(path, body).await
            }
            answer => answer,
        }
    }

    async fn log_in_once(&self) -> Result<(), CallError> {
        let Some((name, password)) = &self.user else { return Ok(()) };
        if self.token.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let answer =
            self.call_once("auth/authenticate", &json!({ "name": name, "password": password })).await;
        let answer = answer.map_err(|error| CallError::NotSent(error.into()))?;
        let token = answer["token"].as_str().map(str::to_owned);
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
        Ok(())
    }

    async fn call_once(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        let place = self.current.load(Ordering::Relaxed);
        let answer = tokio::time::timeout(self.timeout, async {
            let body = self.send(path, body).await?;
            let bytes = Limited::new(body, ANSWER_MAX).collect().await;
            Ok(bytes.map_err(|error| CallError::broken(&error))?.to_bytes())
        });
        let bytes = match answer.await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return Err(self.try_next(place, error)),
            Err(_) => {
                let reason = format!("{} does not answer within {:?}", self.endpoint(place), self.timeout);
                return Err(self.try_next(place, CallError::broken(&reason)));
            }
        };
        self.parse(place, &bytes)
    }

    fn parse(&self, place: usize, bytes: &[u8]) -> Result<Value, CallError> {
        // The answers of streams come in lines; the calls here have a single line.
        let mut lines = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
        let answer = lines.next().and_then(Result::ok);
        let answer = answer.ok_or_else(|| CallError::broken(&"the answer is no JSON"))?;
        if answer.get("error").is_none() && answer.get("code").is_none() {
            return Ok(answer);
        }
        let error = self.explain(&answer);
        Err(if matches!(error, CallError::Unknown(_)) { self.try_next(place, error) } else { error })
    }

    /// The error that etcd answered with. Codes are those of gRPC.
    fn explain(&self, answer: &Value) -> CallError {
        let detail = if answer["error"].is_object() { &answer["error"] } else { answer };
        let code = detail["code"].as_u64().or(detail["grpc_code"].as_u64()).unwrap_or(0);
        let text = detail["message"].as_str().or(answer["error"].as_str()).unwrap_or("no reason").to_owned();
        let user = self.user.as_ref().map(|(name, _)| name.clone()).unwrap_or_default();
        match code {
            8 if text.contains("space exceeded") => CallError::Refused(StoreError::NoSpace),
            3 if text.contains("authentication failed") => CallError::Refused(StoreError::Password { user }),
            3 if text.contains("user name is empty") => self.no_permission(text),
            7 | 16 => self.no_permission(text),
            3 | 5 | 8 | 9 => CallError::Refused(StoreError::Answer { code, reason: text }),
            _ => CallError::Unknown(StoreError::Answer { code, reason: text }),
        }
    }

    fn no_permission(&self, reason: String) -> CallError {
        CallError::Refused(StoreError::Permission { prefix: self.prefix.clone(), reason })
    }

    /// Opens a stream of answers, on the present member.
    pub(super) async fn open(&self, path: &str, body: &Value) -> Result<Incoming, CallError> {
        self.log_in_once().await?;
        let place = self.current.load(Ordering::Relaxed);
        match tokio::time::timeout(self.timeout, self.send(path, body)).await {
            Ok(answer) => answer.map_err(|error| self.try_next(place, error)),
            Err(_) => Err(self.try_next(place, CallError::broken(&"the watch does not begin"))),
        }
    }

    fn endpoint(&self, place: usize) -> &str {
        &self.endpoints[place % self.endpoints.len()]
    }

    /// The member at a place failed: later calls go to the next member, unless they do already.
    fn try_next(&self, place: usize, error: CallError) -> CallError {
        _ = self.current.compare_exchange(place, place + 1, Ordering::Relaxed, Ordering::Relaxed);
        error
    }

    /// Sends a request. Members to which there is no connection are skipped, since they did not get it.
    async fn send(&self, path: &str, body: &Value) -> Result<Incoming, CallError> {
        let mut reasons = Vec::new();
        for _ in 0..self.endpoints.len() {
            let place = self.current.load(Ordering::Relaxed);
            let endpoint = self.endpoint(place);
            let patience = self.timeout / (self.endpoints.len() as u32 + 1);
            match tokio::time::timeout(patience, self.connect(endpoint)).await {
                Ok(Ok(stream)) => return self.send_over(stream, endpoint, path, body).await,
                Ok(Err(reason)) => reasons.push(format!("{endpoint}: {reason}")),
                Err(_) => reasons.push(format!("{endpoint}: no connection within {patience:?}")),
            }
            _ = self.current.compare_exchange(place, place + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        Err(CallError::NotSent(StoreError::Unreachable { reason: reasons.join("; ") }))
    }

    async fn connect(&self, endpoint: &str) -> Result<Box<dyn Stream>, String> {
        let stream = TcpStream::connect(endpoint).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))?;
        Ok(Box::new(stream))
    }

    async fn send_over(
        &self,
        stream: Box<dyn Stream>,
        endpoint: &str,
        path: &str,
        body: &Value,
    ) -> Result<Incoming, CallError> {
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| CallError::broken(&error))?;
        tokio::spawn(connection);
        let mut request = Request::post(format!("/v3/{path}"))
            .header("host", endpoint)
            .header("content-type", "application/json")
            // A member that loses its leader ends its watches.
            .header("grpc-metadata-hasleader", "true");
        if let Some(token) = &*self.token.lock().unwrap_or_else(PoisonError::into_inner) {
            request = request.header("authorization", token);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string())));
        let request = request.map_err(|error| CallError::broken(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| CallError::broken(&error))?;
        Ok(answer.into_body())
    }
}

fn setting(name: &'static str, reason: &impl std::fmt::Display) -> StoreError {
    StoreError::Setting { name, reason: reason.to_string() }
}

fn connector(tls: &Tls) -> Result<tokio_rustls::TlsConnector, StoreError> {
    let file = |path: &PathBuf, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bad_ca = |error: &dyn std::fmt::Display| setting("cluster-store-ca", &file(&tls.ca, error));
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&tls.ca).map_err(|error| bad_ca(&error))? {
        let certificate = certificate.map_err(|error| bad_ca(&error))?;
        roots.add(certificate).map_err(|error| bad_ca(&error))?;
    }
    if roots.is_empty() {
        return Err(bad_ca(&"it has no certificate"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| setting("cluster-store", &error))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &tls.identity else {
        return Ok(Arc::new(builder.with_no_client_auth()).into());
    };
    let bad =
        |path: &PathBuf, error: &dyn std::fmt::Display| setting("cluster-store-cert", &file(path, error));
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificate).map_err(|error| bad(certificate, &error))?.collect();
    let chain = chain.map_err(|error| bad(certificate, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, &error))?;
    let config = builder.with_client_auth_cert(chain, secret).map_err(|error| bad(certificate, &error))?;
    Ok(Arc::new(config).into())
}
