//! The page of the console: its files, and the headers by which a browser restricts it.
//!
//! The files are part of the binary and the same for everybody, so they need no session. The policy for
//! content lets the page run the scripts of this server alone, and talk to this server alone: a script that
//! a key or a value had brought onto the page would not run.

use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, CACHE_CONTROL, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH, VARY};
use hyper::{HeaderMap, Request, StatusCode};

use crate::Host;
use crate::credentials::has_own_name;
use crate::routes::{Reply, reply, text};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
];

struct File {
    name: &'static str,
    media: &'static str,
    bytes: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A file of the page, by its path in the folder `console`.
macro_rules! file {
    ($name:literal, $media:expr) => {
        File { name: $name, media: $media, bytes: include_bytes!(concat!("../console/", $name)) }
    };
}

const INDEX: File = file!("index.html", "text/html; charset=utf-8");

const FILES: &[File] = &[
    file!("api.js", SCRIPT),
    file!("app.js", SCRIPT),
    file!("charts.js", SCRIPT),
    file!("clients.js", SCRIPT),
    file!("console.css", STYLE),
    file!("doctor.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("format.js", SCRIPT),
    file!("hot.js", SCRIPT),
    file!("icon.svg", "image/svg+xml"),
    file!("keys.js", SCRIPT),
    file!("overview.js", SCRIPT),
    file!("replication.js", SCRIPT),
    file!("settings.js", SCRIPT),
    file!("slots.js", SCRIPT),
    file!("slow.js", SCRIPT),
    file!("state.js", SCRIPT),
    file!("terminal.js", SCRIPT),
    file!("theme.js", SCRIPT),
    file!("users.js", SCRIPT),
    file!("values.js", SCRIPT),
    file!("vendor/uplot-LICENSE.txt", "text/plain; charset=utf-8"),
    file!("vendor/uplot.css", STYLE),
    file!("vendor/uplot.js", SCRIPT),
];

/// Answers a request that reads the page, or a file of it. `None`: the path belongs to neither, or the client
/// prefers the plain list at `/`.
pub(crate) fn answer(request: &Request<Incoming>, host: &dyn Host) -> Option<Reply> {
    let headers = request.headers();
    let file = match request.uri().path() {
        "/" if accepts_html(headers) => Some(&INDEX),
        "/" => return None,
        path => {
            let name = path.strip_prefix("/console/")?;
            FILES.iter().find(|file| file.name == name)
        }
    };
    if !has_own_name(request.uri(), headers, &host.settings().http_hosts) {
        let reason = "'Host' is not a name of this server: add it to the setting http-hosts.\n";
        return Some(text(StatusCode::FORBIDDEN, reason));
    }
    Some(
        file.map_or_else(
            || text(StatusCode::NOT_FOUND, "There is no such file.\n"),
            |file| sent(file, headers),
        ),
    )
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    accepted.any(|accept| accept.to_ascii_lowercase().contains("text/html"))
}

fn sent(file: &'static File, headers: &HeaderMap) -> Reply {
    let tag = format!("\"{:016x}\"", hash_of(file));
    let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|known| known.as_bytes() == tag.as_bytes());
    let mut reply = match is_known {
        true => reply(StatusCode::NOT_MODIFIED, file.media, ""),
        false => reply(StatusCode::OK, file.media, file.bytes),
    };
    for (name, value) in HEADERS {
        reply.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // A browser asks each time, so that it never mixes the files of two versions.
    reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        reply.headers_mut().insert(ETAG, tag);
    }
    reply
}

/// Returns a hash of the file's bytes, by which a browser knows whether it has them.
fn hash_of(file: &'static File) -> u64 {
    static HASHES: LazyLock<Vec<(&str, u64)>> = LazyLock::new(|| {
        let hash = |file: &File| {
            let mut hasher = DefaultHasher::new();
            hasher.write(file.bytes);
            (file.name, hasher.finish())
        };
        FILES.iter().chain([&INDEX]).map(hash).collect()
    });
    HASHES.iter().find(|(name, _)| *name == file.name).map_or(0, |(_, hash)| *hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn list(folder: &Path, prefix: &str, names: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => list(&entry.path(), &format!("{name}/"), names),
                false => names.push(name),
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let mut names = Vec::new();
        list(&Path::new(env!("CARGO_MANIFEST_DIR")).join("console"), "", &mut names);
        names.retain(|name| name != INDEX.name);
        names.sort();
        assert_eq!(names, FILES.iter().map(|file| file.name).collect::<Vec<_>>());
    }

    /// The policy would stop it: the page has to do without.
    #[test]
    fn the_page_has_no_inline_script_or_style_and_no_parts_of_others() {
        let text = |file: &File| String::from_utf8_lossy(file.bytes).into_owned();
        let index = text(&INDEX);
        for wrong in [" style=", "<style", " onclick=", " onload=", "javascript:", "http:", "https:"] {
            assert!(!index.contains(wrong), "{wrong}");
        }
        assert_eq!(index.matches("<script").count(), index.matches("<script src=\"/console/").count());
        let own = FILES.iter().filter(|file| file.media == SCRIPT && !file.name.starts_with("vendor/"));
        for file in own {
            for wrong in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://"]
            {
                assert!(!text(file).contains(wrong), "{}: {wrong}", file.name);
            }
        }
    }

    #[test]
    fn lines_of_the_page_have_their_width() {
        let own = FILES.iter().chain([&INDEX]).filter(|file| !file.name.starts_with("vendor/"));
        for file in own {
            let text = String::from_utf8_lossy(file.bytes);
            for (at, line) in text.lines().enumerate() {
                assert!(line.chars().count() <= 140, "{}:{}", file.name, at + 1);
            }
        }
    }
}
