//! The interface of the console's page: sessions, commands, and the history of the server.
//!
//! | request | reply |
//! |---|---|
//! | `POST /api/login` | begins a session, and sets its cookie |
//! | `GET /api/session` | the session's user and token |
//! | `POST /api/logout` | ends the session |
//! | `POST /api/command`, `/api/pipeline` | the replies to commands, in JSON without loss ([`write_value`]) |
//! | `GET /api/defaults` | the defaults of all settings, by name |
//! | `GET /api/slots` | the keys of each slot |
//! | `GET /api/doctor`, `POST /api/doctor`, `GET /api/doctor/page` | captures by evenkeel-doctor |
//! | `GET /api/series`, `/api/events`, `/api/findings` | the history of the server, within a span of time |
//!
//! The page of a stranger, in the same browser, can send requests here as well. It cannot pass as the
//! console:
//!
//! | defence | against |
//! |---|---|
//! | the cookie is `SameSite=Strict` | requests of other sites |
//! | POST requests need the session's token in `X-Evenkeel-CSRF` | pages of this host on other ports, too |
//! | `Origin`, `Sec-Fetch-Site` have to be of this server | the same, and logins that a stranger sends |
//! | without a session, `Host` has to name this server ([`has_own_name`]) | DNS rebinding |

#[cfg(fuzzing)]
pub(crate) mod fuzzing;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evenkeel_acl::User;
use evenkeel_config::Settings;
use evenkeel_resp::value::{Value, encode_command};
use hyper::body::Incoming;
use hyper::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, HeaderValue, ORIGIN, RETRY_AFTER, SET_COOKIE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, StatusCode};

use crate::Credentials;
use crate::credentials::has_own_name;
use crate::rest::{
    Args, COMMANDS_MAX, Refused, bad, check, parse, query, read_body, unavailable, value_of, write_list,
    write_string,
};
use crate::routes::{Context, Reply, json, reply};
use crate::sessions::{Session, same};

/// Bytes of the body of a login.
const LOGIN_MAX: usize = 16 << 10;

/// Rows of a series.
const POINTS_MAX: usize = 2000;
const POINTS_USUAL: usize = 300;

/// The span of a series that names none.
const SPAN_MS: i64 = 5 * 60 * 1000;

/// Its value is the session's token. A page that asks for a session without a login sends it with any value:
/// the browser lets pages of other origins send no such header.
const CSRF: &str = "x-evenkeel-csrf";

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Commands, a permission for one of which is needed to read events and findings.
const HISTORY_COMMANDS: [&str; 2] = ["LATENCY|DOCTOR", "SLOWLOG|GET"];
const SERIES_COMMAND: &str = "INFO";

/// Slots of a database.
const SLOTS: usize = 16_384;

/// The permission for this command allows to start evenkeel-doctor.
const DOCTOR_COMMAND: &str = "CONFIG|SET";
const CAPTURE_SECONDS: i64 = 10;

/// The policy of the doctor's page. In a sandbox it has no origin, and so neither cookies nor the session.
const PAGE_POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; \
                           style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'";

/// Whether the path belongs to this interface.
pub(crate) fn is_own(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

/// Answers a request of the page.
pub(crate) async fn answer(request: Request<Incoming>, context: &Context) -> Reply {
    let result = run(request, context).await;
    result.unwrap_or_else(|(status, reason)| {
        let mut body = Vec::new();
        write_error(&mut body, reason.as_bytes());
        json(status, body)
    })
}

async fn run(request: Request<Incoming>, context: &Context) -> Result<Reply, Refused> {
    let (head, body) = request.into_parts();
    check_origin(&head)?;
    match (&head.method, head.uri.path()) {
        (&Method::POST, "/api/login") => log_in(&head, body, context).await,
        (&Method::GET, "/api/session") => show_session(&head, context),
        (&Method::POST, "/api/logout") => log_out(&head, context),
        (&Method::POST, "/api/command") => run_command(&head, body, context).await,
        (&Method::POST, "/api/pipeline") => run_pipeline(&head, body, context).await,
        (&Method::GET, "/api/defaults") => defaults(&head, context),
        (&Method::GET, "/api/slots") => slots(&head, context),
        (&Method::GET, "/api/doctor") => {
            operator(&head, context)?;
            Ok(json(StatusCode::OK, context.host.capture()))
        }
        (&Method::POST, "/api/doctor") => start_capture(&head, context),
        (&Method::GET, "/api/doctor/page") => captured_page(&head, context),
        (&Method::GET, "/api/series" | "/api/events" | "/api/findings") => history(&head, context),
        (&Method::GET | &Method::POST, _) => {
            Err((StatusCode::NOT_FOUND, "There is nothing at this path".into()))
        }
        _ => Err((StatusCode::METHOD_NOT_ALLOWED, "The methods are GET and POST".into())),
    }
}

fn forbidden(reason: impl Into<Cow<'static, str>>) -> Refused {
    (StatusCode::FORBIDDEN, reason.into())
}

/// Checks that the request comes from a page of this server, as far as the browser tells.
fn check_origin(head: &Parts) -> Result<(), Refused> {
    let host = host_of(head).unwrap_or_default();
    for origin in head.headers.get_all(ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        if !authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host)) {
            return Err(forbidden("The request comes from a page of another origin"));
        }
    }
    let is_same =
        |site: &HeaderValue| site == "same-origin" || (site == "none" && head.method == Method::GET);
    if !head.headers.get_all(SEC_FETCH_SITE).iter().all(is_same) {
        return Err(forbidden("The request comes from a page of another site"));
    }
    Ok(())
}

/// Returns name and port of this server, as the request has them.
fn host_of(head: &Parts) -> Option<&str> {
    let from_header = || head.headers.get(HOST)?.to_str().ok();
    head.uri.authority().map(|authority| authority.as_str()).or_else(from_header)
}

/// Checks the name in `Host`; a stranger's page can have made it stand for an address of this server.
fn check_name(head: &Parts, context: &Context) -> Result<(), Refused> {
    let settings = context.host.settings();
    if has_own_name(&head.uri, &head.headers, &settings.http_hosts) {
        return Ok(());
    }
    Err(forbidden("'Host' is not a name of this server: add it to the setting http-hosts"))
}

// --- Sessions -----------------------------------------------------------------------------------------------

/// The name of the cookie. It has the port, since browsers keep cookies by host alone.
fn cookie_name(context: &Context) -> String {
    let port = context.client.local_address.rsplit(':').next().unwrap_or_default();
    format!("evenkeel_session_{port}")
}

/// Returns the values of a cookie. There can be several, for other paths or domains.
fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let headers = headers.get_all(COOKIE).iter().filter_map(|header| header.to_str().ok());
    let pairs = headers.flat_map(|header| header.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(of, _)| *of == name).map(|(_, value)| value)
}

fn find_session(head: &Parts, context: &Context) -> Option<Session> {
    let (name, now) = (cookie_name(context), Instant::now());
    let mut tokens = cookies(&head.headers, &name);
    tokens.find_map(|token| {
        let renewed = |user: &User| context.host.renewed(user, &context.client);
        context.sessions.find(token.as_bytes(), now, renewed)
    })
}

/// Returns the session of a request; of a POST request only if it has the session's token.
fn session(head: &Parts, context: &Context) -> Result<Session, Refused> {
    let session = find_session(head, context);
    let session = session.ok_or((StatusCode::UNAUTHORIZED, "There is no session: log in".into()))?;
    let token = head.headers.get(CSRF).map(HeaderValue::as_bytes).unwrap_or_default();
    if head.method != Method::GET && !same(token, session.csrf.as_bytes()) {
        return Err(forbidden("The header X-Evenkeel-CSRF has another token than the session"));
    }
    Ok(session)
}

/// POST /api/login
async fn log_in(head: &Parts, body: Incoming, context: &Context) -> Result<Reply, Refused> {
    check_name(head, context)?;
    let media = head.headers.get(CONTENT_TYPE).and_then(|media| media.to_str().ok()).unwrap_or_default();
    if media.split(';').next().map(str::trim) != Some("application/json") {
        let reason = "A login has the Content-Type application/json";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, reason.into()));
    }
    let body = read_body(body, LOGIN_MAX).await?;
    let credentials = credentials(&body)?;
    let (address, now) = (&context.client.address, Instant::now());
    if let Some(wait) = context.sessions.wait_of(address, now) {
        return Ok(too_many_failures(wait));
    }
    let Some(user) = context.host.log_in(Some(&credentials), &context.client) else {
        context.sessions.record_failure(address, now);
        let reason = "The user does not exist, is off, or has another password";
        return Err((StatusCode::UNAUTHORIZED, reason.into()));
    };
    if let Some(earlier) = find_session(head, context) {
        context.sessions.end(earlier.token.as_bytes());
    }
    Ok(new_session(user, context))
}

fn credentials(body: &[u8]) -> Result<Credentials, Refused> {
    // The parser's message could have a part of the password.
    let form = || bad("A login is an object of JSON with the strings 'user' and 'password'");
    let parsed: serde_json::Value = serde_json::from_slice(body).map_err(|_| form())?;
    let text = |name: &str| parsed.get(name)?.as_str().map(|text| text.as_bytes().to_vec());
    let (user, password) = text("user").zip(text("password")).ok_or_else(form)?;
    Ok(Credentials { user, password })
}

fn too_many_failures(wait: Duration) -> Reply {
    let seconds = wait.as_secs() + 1;
    let mut body = Vec::new();
    write_error(&mut body, format!("Too many failed logins: try again in {seconds} s").as_bytes());
    let mut reply = json(StatusCode::TOO_MANY_REQUESTS, body);
    reply.headers_mut().insert(RETRY_AFTER, seconds.into());
    reply
}

fn new_session(user: Arc<User>, context: &Context) -> Reply {
    let session = context.sessions.begin(user, Instant::now());
    with_cookie(shown(&session), &session.token, "", context)
}

fn with_cookie(mut reply: Reply, value: &str, more: &str, context: &Context) -> Reply {
    let (name, secure) = (cookie_name(context), if context.is_tls { "; Secure" } else { "" });
    let cookie = format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/{more}{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        reply.headers_mut().insert(SET_COOKIE, cookie);
    }
    reply
}

fn shown(session: &Session) -> Reply {
    let mut body = b"{\"user\":".to_vec();
    write_string(&mut body, &session.user.who.name);
    body.extend(b",\"csrf\":");
    write_string(&mut body, session.csrf.as_bytes());
    body.push(b'}');
    json(StatusCode::OK, body)
}

/// GET /api/session: begins a session without a login, if the default user needs no password.
fn show_session(head: &Parts, context: &Context) -> Result<Reply, Refused> {
    if let Some(session) = find_session(head, context) {
        return Ok(shown(&session));
    }
    check_name(head, context)?;
    let asks = head.headers.contains_key(CSRF);
    let user = if asks { context.host.log_in(None, &context.client) } else { None };
    let user = user.filter(|user| user.admits_everybody());
    user.map(|user| new_session(user, context))
        .ok_or((StatusCode::UNAUTHORIZED, "There is no session: log in".into()))
}

/// POST /api/logout
fn log_out(head: &Parts, context: &Context) -> Result<Reply, Refused> {
    let session = session(head, context)?;
    context.sessions.end(session.token.as_bytes());
    let reply = json(StatusCode::NO_CONTENT, Vec::new());
    Ok(with_cookie(reply, "", "; Max-Age=0", context))
}

// --- Commands -----------------------------------------------------------------------------------------------

/// POST /api/command
async fn run_command(head: &Parts, body: Incoming, context: &Context) -> Result<Reply, Refused> {
    let session = session(head, context)?;
    let body = read_body(body, context.host.settings().http_max_body).await?;
    let list = vec![words(&parse(&body)?)?];
    let (outcomes, us) = outcomes(list, database(head)?, session.user, context).await?;
    let mut reply = Vec::new();
    outcomes.iter().for_each(|outcome| write_outcome(&mut reply, outcome, us));
    Ok(json(StatusCode::OK, reply))
}

/// POST /api/pipeline
async fn run_pipeline(head: &Parts, body: Incoming, context: &Context) -> Result<Reply, Refused> {
    let session = session(head, context)?;
    let body = read_body(body, context.host.settings().http_max_body).await?;
    let parsed = parse(&body)?;
    let list = parsed.as_array().ok_or_else(|| bad("A pipeline is an array of arrays"))?;
    if list.len() > COMMANDS_MAX {
        return Err(bad(format!("A pipeline has at most {COMMANDS_MAX} commands")));
    }
    let list = list.iter().map(words).collect::<Result<Vec<_>, _>>()?;
    let (outcomes, us) = outcomes(list, database(head)?, session.user, context).await?;
    let mut reply = Vec::new();
    write_list(&mut reply, &outcomes, |reply, outcome| write_outcome(reply, outcome, us));
    Ok(json(StatusCode::OK, reply))
}

/// Returns the database that the query names.
fn database(head: &Parts) -> Result<Option<u32>, Refused> {
    let query = query(head.uri.query().unwrap_or_default());
    let Some(text) = value_in(&query, "db") else { return Ok(None) };
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| bad("'db' has to be the number of a database"))
}

/// Returns the words of a command: strings, numbers, and bytes as `{"b64": "..."}`.
fn words(value: &serde_json::Value) -> Result<Args, Refused> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| bad("A command is an array of words"))?;
    let word = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text.clone().into_bytes()),
        serde_json::Value::Number(number) => Some(number.to_string().into_bytes()),
        serde_json::Value::Object(object) => STANDARD.decode(object.get("b64")?.as_str()?).ok(),
        _ => None,
    };
    let refused = || bad("A word is a string, a number, or {\"b64\": \"...\"}");
    list.iter().map(|value| word(value).ok_or_else(refused)).collect()
}

/// Runs the commands, and returns their replies with the time that all took together, in microseconds. A
/// command that does not fit HTTP has an error for its reply.
async fn outcomes(
    list: Vec<Args>,
    database: Option<u32>,
    user: Arc<User>,
    context: &Context,
) -> Result<(Vec<Value>, u128), Refused> {
    let (host, began) = (context.host.as_ref(), Instant::now());
    let error = |reason: &str| Value::Error(reason.as_bytes().to_vec());
    let (mut bytes, mut count, mut is_plain) = (Vec::new(), 0, true);
    let refusals: Vec<Option<Value>> = (list.iter())
        .map(|args| match check(std::slice::from_ref(args), host) {
            Ok(leaves_no_state) => {
                (count, is_plain) = (count + 1, is_plain && leaves_no_state);
                bytes.extend(encode_command(args));
                None
            }
            Err((_, reason)) => Some(error(&reason)),
        })
        .collect();
    let mut connection = context.idle.take(host, user, &context.client).map_err(unavailable)?;
    let database = database.filter(|database| *database != 0);
    if let Some(database) = database {
        let select = encode_command(&[b"SELECT".to_vec(), database.to_string().into_bytes()]);
        let reply = value_of(&connection.call(&select, 1).await.map_err(unavailable)?.concat())?;
        if reply.is_error() {
            return Ok((vec![reply; list.len()], began.elapsed().as_micros()));
        }
    }
    let replies = connection.call(&bytes, count).await.map_err(unavailable)?;
    let us = began.elapsed().as_micros();
    if database.is_some() {
        let select = encode_command(&["SELECT", "0"]);
        is_plain &= connection.call(&select, 1).await.is_ok_and(|reply| reply.concat() == b"+OK\r\n");
    }
    if is_plain {
        context.idle.put_back(connection);
    }
    let mut replies = replies.into_iter();
    let outcomes = refusals.into_iter().map(|refusal| match refusal {
        Some(refusal) => Ok(refusal),
        None => value_of(&replies.next().unwrap_or_default()),
    });
    Ok((outcomes.collect::<Result<_, _>>()?, us))
}

fn write_outcome(body: &mut Vec<u8>, value: &Value, us: u128) {
    if let Value::Error(text) = value {
        return write_error(body, text);
    }
    body.extend(b"{\"result\":");
    write_value(body, value);
    body.extend(format!(",\"us\":{us}}}").bytes());
}

fn write_error(body: &mut Vec<u8>, text: &[u8]) {
    body.extend(b"{\"error\":");
    write_string(body, text);
    body.push(b'}');
}

/// Writes a value so that the page gets all its bytes: a string that is no UTF-8 as `{"b64": "..."}`, an
/// error within an array as `{"error": "..."}`.
fn write_value(body: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Int(number) => body.extend(number.to_string().bytes()),
        Value::Simple(text) | Value::Bulk(text) if std::str::from_utf8(text).is_ok() => {
            write_string(body, text);
        }
        Value::Simple(text) | Value::Bulk(text) => {
            body.extend(b"{\"b64\":");
            write_string(body, STANDARD.encode(text).as_bytes());
            body.push(b'}');
        }
        Value::Error(text) => write_error(body, text),
        Value::Array(values) => write_list(body, values, write_value),
        // RESP2 has no further types.
        _ => body.extend(b"null"),
    }
}

/// GET /api/defaults: in the form of CONFIG GET, for a comparison.
fn defaults(head: &Parts, context: &Context) -> Result<Reply, Refused> {
    session(head, context)?;
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let all = Settings::default().get(&[b"*"]);
    let object: serde_json::Map<String, serde_json::Value> =
        all.iter().map(|(name, value)| (text(name), text(value).into())).collect();
    Ok(json(StatusCode::OK, serde_json::Value::Object(object).to_string().into_bytes()))
}

// --- Slots --------------------------------------------------------------------------------------------------

/// GET /api/slots
fn slots(head: &Parts, context: &Context) -> Result<Reply, Refused> {
    let session = session(head, context)?;
    if !context.host.permits(&session.user, SERIES_COMMAND) {
        return Err(forbidden(format!("NOPERM The user has no permission to run {SERIES_COMMAND}")));
    }
    let db = database(head)?.unwrap_or(0);
    let counts = context.host.slots(db as usize);
    let counts = counts.ok_or((StatusCode::SERVICE_UNAVAILABLE, "The keyspace is closed".into()))?;
    let mut body = format!("{{\"db\":{db},\"counts\":[").into_bytes();
    let mut buffer = itoa::Buffer::new();
    for slot in 0..SLOTS {
        if slot > 0 {
            body.push(b',');
        }
        body.extend(buffer.format(counts.get(slot).copied().unwrap_or(0)).bytes());
    }
    body.extend(b"]}");
    Ok(json(StatusCode::OK, body))
}

// --- The doctor ---------------------------------------------------------------------------------------------

/// Checks that the session's user may start programs on this machine: it has to be an operator.
fn operator(head: &Parts, context: &Context) -> Result<(), Refused> {
    let session = session(head, context)?;
    if context.host.permits(&session.user, DOCTOR_COMMAND) {
        return Ok(());
    }
    Err(forbidden(format!("NOPERM The user has no permission to run {DOCTOR_COMMAND}")))
}

/// POST /api/doctor
fn start_capture(head: &Parts, context: &Context) -> Result<Reply, Refused> {
    operator(head, context)?;
    let query = query(head.uri.query().unwrap_or_default());
    let seconds = number_in(&query, "seconds")?.unwrap_or(CAPTURE_SECONDS);
    let seconds = u32::try_from(seconds).map_err(|_| bad("'seconds' has to be a positive number"))?;
    let conflict = |reason: String| (StatusCode::CONFLICT, reason.into());
    context.host.start_capture(seconds).map_err(conflict)?;
    Ok(json(StatusCode::ACCEPTED, context.host.capture()))
}

/// GET /api/doctor/page: a page with scripts of its own, which the browser keeps apart from the console.
fn captured_page(head: &Parts, context: &Context) -> Result<Reply, Refused> {
    operator(head, context)?;
    let page = context.host.captured_page();
    let page = page.ok_or((StatusCode::NOT_FOUND, "There is no capture".into()))?;
    let mut reply = reply(StatusCode::OK, "text/html; charset=utf-8", page.to_vec());
    reply.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    Ok(reply)
}

// --- History ------------------------------------------------------------------------------------------------

/// GET /api/series, /api/events, /api/findings
fn history(head: &Parts, context: &Context) -> Result<Reply, Refused> {
    let (user, host) = (reader(head, context)?, context.host.as_ref());
    let query = query(head.uri.query().unwrap_or_default());
    let now_ms = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as i64);
    let (from_ms, to_ms) = span(&query, now_ms)?;
    let may = |commands: &[&str]| commands.iter().any(|command| host.permits(&user, command));
    let refuse = |command: &str| forbidden(format!("NOPERM The user has no permission to run {command}"));
    let body = if head.uri.path() == "/api/series" {
        if !may(&[SERIES_COMMAND]) {
            return Err(refuse(SERIES_COMMAND));
        }
        let points = number_in(&query, "points")?.unwrap_or(POINTS_USUAL as i64);
        host.series(from_ms, to_ms, points.clamp(1, POINTS_MAX as i64) as usize)
    } else if !may(&HISTORY_COMMANDS) {
        return Err(refuse(&HISTORY_COMMANDS.join(" or ")));
    } else if head.uri.path() == "/api/events" {
        host.events(from_ms, to_ms)
    } else {
        host.findings(from_ms, to_ms)
    };
    Ok(json(StatusCode::OK, body))
}

/// Returns the user who reads the history: of the session, or, for tools, by the header `Authorization`.
fn reader(head: &Parts, context: &Context) -> Result<Arc<User>, Refused> {
    let unauthorized = |reason: &'static str| (StatusCode::UNAUTHORIZED, reason.into());
    let Some(credentials) = Credentials::from_headers(&head.headers).map_err(unauthorized)? else {
        return session(head, context).map(|session| session.user);
    };
    let user = context.host.log_in(Some(&credentials), &context.client);
    user.ok_or_else(|| unauthorized("The user does not exist, is off, or has another password"))
}

type Query = [(Vec<u8>, Vec<u8>)];

/// Returns the bounds of the span. A bound that is not positive is relative to now.
fn span(query: &Query, now_ms: i64) -> Result<(i64, i64), Refused> {
    let absolute = |ms: i64| if ms > 0 { ms } else { now_ms.saturating_add(ms) };
    let from = absolute(number_in(query, "from")?.unwrap_or(-SPAN_MS));
    let to = absolute(number_in(query, "to")?.unwrap_or(0));
    if from > to {
        return Err(bad("'from' has to be before 'to'"));
    }
    Ok((from, to))
}

fn value_in<'a>(query: &'a Query, name: &str) -> Option<&'a [u8]> {
    query.iter().find(|(of, _)| of == name.as_bytes()).map(|(_, value)| &value[..])
}

fn number_in(query: &Query, name: &str) -> Result<Option<i64>, Refused> {
    let Some(text) = value_in(query, name) else { return Ok(None) };
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| bad(format!("'{name}' has to be a number")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn written(value: &Value) -> String {
        let mut body = Vec::new();
        write_outcome(&mut body, value, 7);
        String::from_utf8(body).expect("JSON is text")
    }

    #[test]
    fn values_in_json() {
        assert_eq!(written(&Value::Bulk(b"a\"\0".to_vec())), "{\"result\":\"a\\\"\\u0000\",\"us\":7}");
        assert_eq!(written(&Value::Bulk(b"\xff\0".to_vec())), "{\"result\":{\"b64\":\"/wA=\"},\"us\":7}");
        assert_eq!(written(&Value::NullBulk), "{\"result\":null,\"us\":7}");
        assert_eq!(written(&Value::Error(b"ERR \"x\"".to_vec())), "{\"error\":\"ERR \\\"x\\\"\"}");
        let list = vec![Value::Int(-1), Value::Error(b"E".to_vec()), Value::Array(Vec::new())];
        assert_eq!(written(&Value::Array(list)), "{\"result\":[-1,{\"error\":\"E\"},[]],\"us\":7}");
    }

    #[test]
    fn words_of_commands() {
        let read = |text: &str| words(&serde_json::from_str(text).expect("JSON")).map_err(|(_, why)| why);
        let is = |words: &[&[u8]]| Ok(words.iter().map(|word| word.to_vec()).collect());
        assert_eq!(read("[\"GET\", \"k\", -7, 1.5]"), is(&[b"GET", b"k", b"-7", b"1.5"]));
        assert_eq!(read("[\"GET\", {\"b64\": \"/wA=\"}]"), is(&[b"GET", b"\xff\0"]));
        for wrong in ["[]", "{}", "7", "[null]", "[[]]", "[{}]", "[{\"b64\": 7}]", "[{\"b64\": \"?\"}]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bounds_are_absolute_or_relative() {
        let of = |text: &str| span(&query(text), 1_000_000).map_err(|(_, why)| why);
        assert_eq!(of(""), Ok((700_000, 1_000_000)));
        assert_eq!(of("from=-1000&to=-500"), Ok((999_000, 999_500)));
        assert_eq!(of("from=5&to=6"), Ok((5, 6)));
        assert!(of("from=7&to=6").is_err() && of("from=x").is_err() && of("from=").is_err());
    }

    #[test]
    fn cookies_of_a_name() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; s=2;s=3 ;ss=4"));
        headers.append(COOKIE, HeaderValue::from_static("s=5; s"));
        assert_eq!(cookies(&headers, "s").collect::<Vec<_>>(), ["2", "3", "5"]);
    }

    fn head(headers: &[(&str, &str)], method: Method) -> Parts {
        let request = headers
            .iter()
            .fold(Request::builder().method(method), |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn origins_are_compared_with_the_host() {
        let is_own = |host: &str, more: (&str, &str), method: Method| {
            check_origin(&head(&[("host", host), more], method)).is_ok()
        };
        let origin = |origin: &str| is_own("a:1", ("origin", origin), Method::POST);
        assert!(origin("http://a:1") && origin("https://A:1"));
        for other in ["http://a:2", "http://a", "http://b:1", "null", "", "a:1", "ftp://a:1", "http://a:1/x"]
        {
            assert!(!origin(other), "{other}");
        }
        let site = |site: &str, method: Method| is_own("a:1", ("sec-fetch-site", site), method);
        assert!(site("same-origin", Method::POST) && site("none", Method::GET));
        for other in ["same-site", "cross-site", ""] {
            assert!(!site(other, Method::GET), "{other}");
        }
        assert!(!site("none", Method::POST));
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in vec(any::<u8>(), 0..60), text in "[a-z=&%0-9\\PC]{0,30}") {
            let _ = credentials(&body);
            if let Ok(parsed) = parse(&body) {
                let _ = words(&parsed);
            }
            let _ = span(&query(&text), 1);
        }

        #[test]
        fn bytes_come_back(bytes in vec(any::<u8>(), 0..40)) {
            let shown: serde_json::Value =
                serde_json::from_str(&written(&Value::Bulk(bytes.clone()))).expect("JSON");
            let read = words(&serde_json::Value::Array(vec![shown["result"].clone()]));
            prop_assert_eq!(read.map_err(|(_, why)| why), Ok(vec![bytes]));
        }
    }
}
