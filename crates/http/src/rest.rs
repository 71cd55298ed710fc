//! Commands over HTTP, compatible with the REST API of Upstash.
//!
//! | request | commands |
//! |---|---|
//! | `GET /set/key/value?EX=100` | the parts of the path, then the names and values of the query |
//! | `POST /set/key?EX=100` | the same, with the body between path and query |
//! | `POST /` | a JSON array: `["SET", "key", "value"]` |
//! | `POST /pipeline` | an array of such arrays; each has a result of its own |
//! | `POST /multi-exec` | the same, as a transaction |
//! | `GET /subscribe/a/b`, `/psubscribe/a*`, `/monitor` | messages, as server-sent events ([`events`]) |
//!
//! The reply is `{"result": ...}` with status 200, or `{"error": "..."}` with 400; pipelines and transactions
//! reply with an array of these. Replies are those of RESP2. With `Upstash-Encoding: base64`, strings are in
//! base64, except `OK`; with `Upstash-Response-Format: resp2` the reply is that of RESP, as it is.
//!
//! Every request needs credentials, also if the default user has no password: a web page of a stranger can
//! make a browser send requests here, but not with this header, without being asked first (CORS). The
//! parameter `_token` stands for the header, but not for users without a password.

#[cfg(fuzzing)]
pub(crate) mod fuzzing;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evenkeel_acl::User;
use evenkeel_resp::value::{Value, decode, encode_command};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, StatusCode};
use percent_encoding::percent_decode_str;

use crate::body::Content;
use crate::events;
use crate::routes::{Context, Reply, json, reply, reply_of};
use crate::{Client, CommandKind, Credentials, Host};

/// Longest time in which a body has to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// Most commands of a pipeline or transaction.
pub(crate) const COMMANDS_MAX: usize = 10_000;

pub(crate) type Args = Vec<Vec<u8>>;

/// The commands of a request.
#[derive(Debug, PartialEq)]
enum Commands {
    Single(Args),
    Pipeline(Vec<Args>),
    Transaction(Vec<Args>),
}

/// A refusal: the status and the text of the error.
pub(crate) type Refused = (StatusCode, Cow<'static, str>);

pub(crate) fn bad(reason: impl Into<Cow<'static, str>>) -> Refused {
    (StatusCode::BAD_REQUEST, reason.into())
}

/// The form of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json { is_base64: bool },
    Resp2,
}

/// Answers a request for commands.
pub(crate) async fn answer(request: Request<Incoming>, context: &Context) -> Reply {
    match run(request, context).await {
        Ok(reply) => reply,
        Err((status, reason)) => {
            let mut body = Vec::new();
            write_error(&mut body, reason.as_bytes());
            json(status, body)
        }
    }
}

async fn run(request: Request<Incoming>, context: &Context) -> Result<Reply, Refused> {
    let (host, client) = (context.host.as_ref(), &context.client);
    let (head, body) = request.into_parts();
    let has_body = match head.method {
        Method::POST | Method::PUT => true,
        Method::GET | Method::HEAD => false,
        _ => {
            let reason = "ERR The methods are GET, HEAD, POST and PUT";
            return Err((StatusCode::METHOD_NOT_ALLOWED, reason.into()));
        }
    };
    // Before the body, which a stranger need not send.
    let query = query(head.uri.query().unwrap_or_default());
    let user = log_in(&head.headers, &query, host, client)?;
    if let Some(command) = subscription(head.uri.path()) {
        return follow(&command, user, context).await;
    }
    let body = if has_body { read_body(body, host.settings().http_max_body).await? } else { Vec::new() };
    let commands = commands(head.uri.path(), &query, has_body, body)?;
    let form = form(&head.headers);
    let (list, is_transaction) = match &commands {
        Commands::Single(args) => (std::slice::from_ref(args), false),
        Commands::Pipeline(list) => (&list[..], false),
        Commands::Transaction(list) => (&list[..], true),
    };
    let is_plain = check(list, host)?;
    let (mut bytes, mut count) = (Vec::new(), list.len());
    if is_transaction {
        bytes.extend(encode_command(&["MULTI"]));
        count += 2;
    }
    list.iter().for_each(|args| bytes.extend(encode_command(args)));
    if is_transaction {
        bytes.extend(encode_command(&["EXEC"]));
    }
    let mut connection = context.idle.take(host, user, client).map_err(unavailable)?;
    let replies = connection.call(&bytes, count).await.map_err(unavailable)?;
    if is_plain {
        context.idle.put_back(connection);
    }
    written(&commands, &replies, form)
}

pub(crate) fn unavailable(error: std::io::Error) -> Refused {
    let reason = format!("ERR The server does not serve this request: {error}");
    (StatusCode::SERVICE_UNAVAILABLE, reason.into())
}

/// Returns the command of a path whose reply is a stream of messages.
fn subscription(path: &str) -> Option<Args> {
    let args = words_of(path);
    let name = args.first()?.to_ascii_uppercase();
    let is_one = match &name[..] {
        b"SUBSCRIBE" | b"PSUBSCRIBE" => args.len() > 1,
        b"MONITOR" => args.len() == 1,
        _ => false,
    };
    is_one.then_some(args)
}

/// Runs the command, and replies with its messages.
async fn follow(command: &Args, user: Arc<User>, context: &Context) -> Result<Reply, Refused> {
    let taken = context.idle.take(context.host.as_ref(), user, &context.client);
    let mut connection = taken.map_err(unavailable)?;
    let first = connection.call(&encode_command(command), 1).await.map_err(unavailable)?.concat();
    if let Value::Error(text) = value_of(&first)? {
        return Err(bad(String::from_utf8_lossy(&text).into_owned()));
    }
    let messages = Content::Events(events::forward(connection, &first));
    Ok(reply_of(StatusCode::OK, "text/event-stream", messages))
}

/// Returns the parts of a path, decoded.
fn words_of(path: &str) -> Args {
    path.split('/').skip(1).map(|part| percent_decode_str(part).collect()).collect()
}

/// Returns the user of the request.
fn log_in(
    headers: &HeaderMap,
    query: &[(Vec<u8>, Vec<u8>)],
    host: &dyn Host,
    client: &Client,
) -> Result<Arc<User>, Refused> {
    let unauthorized = |reason: &'static str| (StatusCode::UNAUTHORIZED, reason.into());
    let by_header = Credentials::from_headers(headers).map_err(unauthorized)?;
    let by_query =
        query.iter().find(|(name, _)| name == TOKEN).map(|(_, token)| Credentials::from_token(token));
    let is_by_query = by_header.is_none();
    let Some(credentials) = by_header.or(by_query) else {
        return Err(unauthorized("WRONGPASS A token is needed: 'Authorization: Bearer user:password'"));
    };
    let user = host.log_in(Some(&credentials), client);
    let user = user.filter(|user| !is_by_query || !user.admits_everybody());
    user.ok_or_else(|| unauthorized("WRONGPASS invalid or missing auth token"))
}

/// The parameter that stands for the header `Authorization`.
const TOKEN: &[u8] = b"_token";

pub(crate) async fn read_body(body: Incoming, max: usize) -> Result<Vec<u8>, Refused> {
    let collected = tokio::time::timeout(BODY_TIME_MAX, Limited::new(body, max).collect()).await;
    match collected {
        Ok(Ok(body)) => Ok(body.to_bytes().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err((
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("ERR The body exceeds http-max-body, {max} bytes").into(),
        )),
        Ok(Err(error)) => Err(bad(format!("ERR The body cannot be read: {error}"))),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "ERR The body came too slowly".into())),
    }
}

/// Decodes the names and values of a query.
pub(crate) fn query(text: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let decoded = |text: &str| -> Vec<u8> { percent_decode_str(&text.replace('+', " ")).collect() };
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (decoded(name), decoded(value))
    };
    text.split('&').filter(|part| !part.is_empty()).map(pair).collect()
}

fn commands(
    path: &str,
    query: &[(Vec<u8>, Vec<u8>)],
    has_body: bool,
    body: Vec<u8>,
) -> Result<Commands, Refused> {
    match path {
        "/" => Ok(Commands::Single(of_array(&parse(&body)?)?)),
        "/pipeline" => Ok(Commands::Pipeline(of_arrays(&body)?)),
        "/multi-exec" => Ok(Commands::Transaction(of_arrays(&body)?)),
        _ => {
            let mut args = words_of(path);
            if has_body {
                args.push(body);
            }
            for (name, value) in query.iter().filter(|(name, _)| name != TOKEN) {
                args.extend([name.clone(), value.clone()].into_iter().filter(|word| !word.is_empty()));
            }
            Ok(Commands::Single(args))
        }
    }
}

pub(crate) fn parse(body: &[u8]) -> Result<serde_json::Value, Refused> {
    serde_json::from_slice(body).map_err(|error| bad(format!("ERR failed to parse command: {error}")))
}

fn of_arrays(body: &[u8]) -> Result<Vec<Args>, Refused> {
    let parsed = parse(body)?;
    let list = parsed.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| bad("ERR failed to parse pipeline: an array of arrays is needed"))?;
    if list.len() > COMMANDS_MAX {
        return Err(bad(format!("ERR A pipeline has at most {COMMANDS_MAX} commands")));
    }
    list.iter().map(of_array).collect()
}

/// Returns the words of a command. Numbers and booleans stand for their text.
fn of_array(value: &serde_json::Value) -> Result<Args, Refused> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| bad("ERR failed to parse command: an array of words is needed"))?;
    let word = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Ok(text.clone().into_bytes()),
        serde_json::Value::Number(number) => Ok(number.to_string().into_bytes()),
        serde_json::Value::Bool(flag) => Ok(flag.to_string().into_bytes()),
        _ => Err(bad("ERR failed to parse command: a word is a string, a number or a boolean")),
    };
    list.iter().map(word).collect()
}

/// Checks that all commands fit a request of HTTP. Returns whether they leave no state on the connection.
pub(crate) fn check(list: &[Args], host: &dyn Host) -> Result<bool, Refused> {
    let mut is_plain = true;
    for args in list {
        if args.first().is_none_or(Vec::is_empty) {
            return Err(bad("ERR unknown command ''"));
        }
        match host.command_kind(args) {
            CommandKind::Plain => {}
            CommandKind::Stateful => is_plain = false,
            CommandKind::Unfit => {
                let name = String::from_utf8_lossy(&args[0]).into_owned();
                return Err(bad(format!("ERR Command is not available over HTTP: '{name}'")));
            }
        }
    }
    Ok(is_plain)
}

fn form(headers: &HeaderMap) -> Form {
    let is = |name: &str, value: &str| {
        headers.get(name).is_some_and(|header| header.as_bytes().eq_ignore_ascii_case(value.as_bytes()))
    };
    if is("upstash-response-format", "resp2") {
        return Form::Resp2;
    }
    Form::Json { is_base64: is("upstash-encoding", "base64") }
}

/// Returns the reply to a request.
fn written(commands: &Commands, replies: &[Vec<u8>], form: Form) -> Result<Reply, Refused> {
    // EXEC replies to the whole transaction.
    let last = replies.last().map_or(&[][..], Vec::as_slice);
    let Form::Json { is_base64 } = form else {
        let bytes =
            if matches!(commands, Commands::Transaction(_)) { last.to_vec() } else { replies.concat() };
        return Ok(reply(StatusCode::OK, "application/octet-stream", bytes));
    };
    let mut body = Vec::new();
    match commands {
        Commands::Single(_) => {
            let value = value_of(last)?;
            let status = if value.is_error() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
            write_outcome(&mut body, &value, is_base64);
            return Ok(json(status, body));
        }
        Commands::Pipeline(_) => {
            let values = replies.iter().map(|reply| value_of(reply)).collect::<Result<Vec<_>, _>>()?;
            write_list(&mut body, &values, |body, value| write_outcome(body, value, is_base64));
        }
        Commands::Transaction(_) => match value_of(last)? {
            Value::Array(values) => {
                write_list(&mut body, &values, |body, value| write_outcome(body, value, is_base64));
            }
            Value::Error(text) => {
                write_error(&mut body, &text);
                return Ok(json(StatusCode::BAD_REQUEST, body));
            }
            other => write_outcome(&mut body, &other, is_base64),
        },
    }
    Ok(json(StatusCode::OK, body))
}

pub(crate) fn value_of(reply: &[u8]) -> Result<Value, Refused> {
    let decoded = decode(reply).ok().flatten().map(|(value, _)| value);
    decoded.ok_or((StatusCode::INTERNAL_SERVER_ERROR, "ERR The reply cannot be read".into()))
}

/// Writes `{"result": ...}` or `{"error": "..."}`.
fn write_outcome(body: &mut Vec<u8>, value: &Value, is_base64: bool) {
    if let Value::Error(text) = value {
        return write_error(body, text);
    }
    body.extend(b"{\"result\":");
    write_value(body, value, is_base64);
    body.push(b'}');
}

fn write_error(body: &mut Vec<u8>, text: &[u8]) {
    body.extend(b"{\"error\":");
    write_string(body, text);
    body.push(b'}');
}

fn write_value(body: &mut Vec<u8>, value: &Value, is_base64: bool) {
    match value {
        Value::Int(number) => body.extend(number.to_string().bytes()),
        Value::Simple(text) if text == b"OK" => write_string(body, text),
        Value::Simple(text) | Value::Bulk(text) if is_base64 => {
            write_string(body, STANDARD.encode(text).as_bytes());
        }
        Value::Simple(text) | Value::Bulk(text) | Value::Error(text) => write_string(body, text),
        Value::Array(values) => {
            write_list(body, values, |body, value| write_value(body, value, is_base64));
        }
        // RESP2 has no further types.
        _ => body.extend(b"null"),
    }
}

pub(crate) fn write_list(body: &mut Vec<u8>, values: &[Value], write: impl Fn(&mut Vec<u8>, &Value)) {
    body.push(b'[');
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        write(body, value);
    }
    body.push(b']');
}

/// Writes a string of JSON. Bytes that are no UTF-8 become replacement characters.
pub(crate) fn write_string(body: &mut Vec<u8>, text: &[u8]) {
    // Writing a string to memory cannot fail.
    let _ = serde_json::to_writer(body, &String::from_utf8_lossy(text));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn words(args: &Args) -> Vec<&str> {
        args.iter().map(|word| std::str::from_utf8(word).expect("text")).collect()
    }

    #[track_caller]
    fn single(path: &str, text: &str, body: Option<&str>) -> Vec<String> {
        let body_bytes = body.unwrap_or_default().as_bytes().to_vec();
        let commands = commands(path, &query(text), body.is_some(), body_bytes).expect("a command");
        let Commands::Single(args) = commands else { panic!("{commands:?}") };
        words(&args).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn commands_in_the_path() {
        assert_eq!(single("/set/foo/bar", "", None), ["set", "foo", "bar"]);
        assert_eq!(single("/set/a%2Fb/%20x", "EX=100&NX", None), ["set", "a/b", " x", "EX", "100", "NX"]);
        assert_eq!(single("/get/foo", "_token=secret", None), ["get", "foo"]);
        assert_eq!(
            single("/set/foo", "EX=100", Some("{\"a\": 1}")),
            ["set", "foo", "{\"a\": 1}", "EX", "100"]
        );
        assert_eq!(single("/set/foo/", "", None), ["set", "foo", ""]);
        assert_eq!(single("/echo/a+b", "x=c+d", None), ["echo", "a+b", "x", "c d"]);
    }

    #[test]
    fn commands_in_the_body() {
        assert_eq!(
            single("/", "", Some("[\"SET\", \"k\", 1.5, true, -7]")),
            ["SET", "k", "1.5", "true", "-7"]
        );
        for body in ["", "{}", "[]", "[[]]", "[null]", "[\"GET\", {}]", "[\"GET\"", "\"GET\"", "7"] {
            assert!(commands("/", &[], true, body.as_bytes().to_vec()).is_err(), "{body}");
        }
    }

    #[test]
    fn pipelines_and_transactions() {
        let body = || b"[[\"SET\",\"a\",1],[\"GET\",\"a\"]]".to_vec();
        let list =
            vec![vec![b"SET".to_vec(), b"a".to_vec(), b"1".to_vec()], vec![b"GET".to_vec(), b"a".to_vec()]];
        assert_eq!(commands("/pipeline", &[], true, body()), Ok(Commands::Pipeline(list.clone())));
        assert_eq!(commands("/multi-exec", &[], true, body()), Ok(Commands::Transaction(list)));
        for body in ["[]", "[[]]", "[\"GET\",\"a\"]", "[[\"GET\"],7]"] {
            assert!(commands("/pipeline", &[], true, body.as_bytes().to_vec()).is_err(), "{body}");
        }
    }

    #[test]
    fn values_in_json() {
        let shown = |reply: &[u8], is_base64: bool| {
            let mut body = Vec::new();
            write_outcome(&mut body, &value_of(reply).expect("a reply"), is_base64);
            String::from_utf8(body).expect("JSON is text")
        };
        assert_eq!(shown(b"+OK\r\n", true), "{\"result\":\"OK\"}");
        assert_eq!(shown(b"+PONG\r\n", true), "{\"result\":\"UE9ORw==\"}");
        assert_eq!(shown(b"$3\r\na\"b\r\n", false), "{\"result\":\"a\\\"b\"}");
        assert_eq!(shown(b"$2\r\n\xff\x00\r\n", false), "{\"result\":\"\u{fffd}\\u0000\"}");
        assert_eq!(shown(b"$2\r\n\xff\x00\r\n", true), "{\"result\":\"/wA=\"}");
        assert_eq!(shown(b"$-1\r\n", true), "{\"result\":null}");
        assert_eq!(shown(b"*-1\r\n", true), "{\"result\":null}");
        assert_eq!(shown(b":-7\r\n", true), "{\"result\":-7}");
        assert_eq!(shown(b"*2\r\n*1\r\n:1\r\n$1\r\na\r\n", false), "{\"result\":[[1],\"a\"]}");
        assert_eq!(shown(b"*0\r\n", false), "{\"result\":[]}");
        assert_eq!(shown(b"-ERR \"x\"\r\n", true), "{\"error\":\"ERR \\\"x\\\"\"}");
    }

    fn value() -> impl Strategy<Value = Value> {
        let bytes = || vec(any::<u8>(), 0..20);
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::Int),
            bytes().prop_map(Value::Bulk),
            "[A-Z ]{0,9}".prop_map(|text| Value::Simple(text.into_bytes())),
            "[A-Z \"]{0,9}".prop_map(|text| Value::Error(text.into_bytes())),
            Just(Value::NullBulk),
            Just(Value::NullArray),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| vec(inner, 0..5).prop_map(Value::Array))
    }

    proptest! {
        #[test]
        fn any_request_is_parsed_or_refused(
            path in "/?(pipeline|multi-exec|[a-z/%0-9\\PC]{0,30})",
            text in "[a-z=&%+\\PC]{0,30}",
            body in vec(any::<u8>(), 0..60),
            has_body in any::<bool>(),
        ) {
            let _ = subscription(&path);
            let parsed = commands(&path, &query(&text), has_body, body);
            if let Ok(Commands::Pipeline(list) | Commands::Transaction(list)) = parsed {
                prop_assert!(list.iter().all(|args| !args.is_empty()));
            }
        }

        #[test]
        fn any_value_becomes_json(value in value(), is_base64 in any::<bool>()) {
            let mut body = Vec::new();
            write_outcome(&mut body, &value, is_base64);
            let parsed: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            let is_error = matches!(value, Value::Error(_));
            prop_assert_eq!(parsed.get("error").is_some(), is_error);
            prop_assert_eq!(parsed.get("result").is_some(), !is_error);
            if let (Value::Bulk(bytes), true) = (&value, is_base64) {
                let text = parsed["result"].as_str().expect("a string");
                prop_assert_eq!(&STANDARD.decode(text).expect("base64"), bytes);
            }
        }
    }
}
