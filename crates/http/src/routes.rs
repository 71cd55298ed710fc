//! Requests and their replies.

use std::sync::Arc;
use std::time::Instant;

use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, CACHE_CONTROL, CONTENT_LENGTH,
    CONTENT_TYPE, HeaderValue, ORIGIN, VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};

use crate::body::Content;
use crate::connections::Connections;
use crate::credentials::has_own_name;
use crate::sessions::Sessions;
use crate::worker_connection::IdleConnections;
use crate::{Client, Credentials, Exposition, Host, Kind};
use crate::{api, console, rest};

const TEXT: &str = "text/plain; charset=utf-8";

/// The user that reads metrics needs the permission for this command, as for the same figures by RESP.
const METRICS_COMMAND: &str = "INFO";

const INDEX: &str = "Evenkeel\n\n/metrics\n/livez\n/readyz\n/ in a browser: the console (http-console)\n\
                     other paths: commands (http-rest)\n";

pub(crate) type Reply = Response<Content>;

/// The surroundings of a request.
pub(crate) struct Context {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) client: Client,
    /// Connections to workers, of this connection of HTTP.
    pub(crate) idle: IdleConnections,
    /// All connections of HTTP.
    pub(crate) open: Arc<Connections>,
    /// Sessions of the console.
    pub(crate) sessions: Arc<Sessions>,
    /// Whether the client sees an address of HTTPS.
    pub(crate) is_tls: bool,
}

/// Answers a request.
pub(crate) async fn answer(request: Request<Incoming>, context: &Context) -> Reply {
    let host = context.host.as_ref();
    // Before CORS: no page of another origin has a part in the console.
    if host.settings().http_console && api::is_own(request.uri().path()) {
        return api::answer(request, context).await;
    }
    let origin = allowed_origin(&request, &host.settings().http_allow_origins);
    if let (Some(origin), &Method::OPTIONS) = (&origin, request.method()) {
        return preflight(&request, origin.clone());
    }
    let is_head = request.method() == Method::HEAD;
    let has_rest = host.settings().http_rest;
    let is_get = is_head || request.method() == Method::GET;
    if is_get
        && host.settings().http_console
        && let Some(reply) = console::answer(&request, host)
    {
        return if is_head { without_body(reply) } else { reply };
    }
    let mut reply = match request.uri().path() {
        "/" if is_get => text(StatusCode::OK, INDEX),
        "/livez" if is_get => text(StatusCode::OK, "ok\n"),
        "/readyz" if is_get => match host.unready() {
            None => text(StatusCode::OK, "ok\n"),
            Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        "/metrics" if is_get => metrics(&request, context).unwrap_or_else(Reply::from),
        "/livez" | "/readyz" | "/metrics" => {
            let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, "The methods are GET and HEAD.\n");
            reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            reply
        }
        _ if has_rest => rest::answer(request, context).await,
        _ => text(StatusCode::NOT_FOUND, "There is nothing at this path.\n"),
    };
    if let Some(origin) = origin {
        allow(&mut reply, origin);
    }
    if is_head { without_body(reply) } else { reply }
}

/// Returns the request's `Origin`, if pages from there may read replies (CORS). `allowed` has origins,
/// separated by spaces, or `*`.
fn allowed_origin(request: &Request<Incoming>, allowed: &[u8]) -> Option<HeaderValue> {
    let origin = request.headers().get(ORIGIN)?;
    let mut words = allowed.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.any(|word| word == b"*" || word == origin.as_bytes()).then(|| origin.clone())
}

fn allow(reply: &mut Reply, origin: HeaderValue) {
    reply.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    reply.headers_mut().insert(VARY, HeaderValue::from_static("Origin"));
}

/// The reply to a browser that asks whether a page may send a request with credentials.
fn preflight(request: &Request<Incoming>, origin: HeaderValue) -> Reply {
    let mut reply = text(StatusCode::NO_CONTENT, "");
    allow(&mut reply, origin);
    let methods = HeaderValue::from_static("GET, HEAD, POST, PUT");
    reply.headers_mut().insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    reply.headers_mut().insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(headers) = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS) {
        reply.headers_mut().insert(ACCESS_CONTROL_ALLOW_HEADERS, headers.clone());
    }
    reply
}

fn metrics(request: &Request<Incoming>, context: &Context) -> Result<Reply, Refusal> {
    let host = context.host.as_ref();
    if !host.settings().http_metrics_public {
        authorize(request, host, &context.client, METRICS_COMMAND)?;
    }
    let began = Instant::now();
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let mut exposition = Exposition::new(accept.unwrap_or_default());
    host.metrics(&mut exposition);
    let open = context.open.count();
    exposition.single("evenkeel_http_connections", Kind::Gauge, "Connections of HTTP.", open);
    exposition.single(
        "evenkeel_scrape_duration_seconds",
        Kind::Gauge,
        "Time that writing these metrics took.",
        began.elapsed().as_secs_f64(),
    );
    let (media, written) = exposition.end();
    Ok(reply(StatusCode::OK, media, written))
}

/// The reason why a request is refused.
enum Refusal {
    /// Credentials are missing or wrong.
    Unauthorized(&'static str),
    Forbidden(String),
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        match refusal {
            Refusal::Unauthorized(reason) => {
                let mut reply = text(StatusCode::UNAUTHORIZED, format!("{reason}\n"));
                let challenge = HeaderValue::from_static("Basic realm=\"Evenkeel\", charset=\"UTF-8\"");
                reply.headers_mut().insert(WWW_AUTHENTICATE, challenge);
                reply
            }
            Refusal::Forbidden(reason) => text(StatusCode::FORBIDDEN, format!("{reason}\n")),
        }
    }
}

/// Checks that the request comes from a user that may run this command.
fn authorize(
    request: &Request<Incoming>,
    host: &dyn Host,
    client: &Client,
    command: &str,
) -> Result<(), Refusal> {
    let credentials = Credentials::from_headers(request.headers()).map_err(Refusal::Unauthorized)?;
    let own_names = &host.settings().http_hosts;
    if credentials.is_none() && !has_own_name(request.uri(), request.headers(), own_names) {
        return Err(Refusal::Forbidden(
            "A request without credentials has to name this server in 'Host' by an address, by localhost, or \
             by a name in the setting http-hosts."
                .to_owned(),
        ));
    }
    let Some(user) = host.log_in(credentials.as_ref(), client) else {
        return Err(Refusal::Unauthorized(match credentials {
            Some(_) => "The user does not exist, is off, or has another password.",
            None => "User and password are needed: Basic, or Bearer user:password.",
        }));
    };
    if !host.permits(&user, command) {
        return Err(Refusal::Forbidden(format!("The user has no permission to run {command}.")));
    }
    Ok(())
}

pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    reply(status, TEXT, body)
}

pub(crate) fn json(status: StatusCode, body: Vec<u8>) -> Reply {
    reply(status, "application/json", body)
}

pub(crate) fn reply(status: StatusCode, media: &'static str, body: impl Into<Bytes>) -> Reply {
    reply_of(status, media, Content::Whole(body.into()))
}

pub(crate) fn reply_of(status: StatusCode, media: &'static str, content: Content) -> Reply {
    let mut reply = Response::new(content);
    *reply.status_mut() = status;
    for (name, value) in
        [(CONTENT_TYPE, media), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")]
    {
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    reply
}

/// The reply to HEAD: all headers, with the length that the body has for GET.
fn without_body(mut reply: Reply) -> Reply {
    if let Content::Whole(bytes) = reply.body() {
        let len = bytes.len();
        reply.headers_mut().insert(CONTENT_LENGTH, len.into());
    }
    *reply.body_mut() = Content::Whole(Bytes::new());
    reply
}
