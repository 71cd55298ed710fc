//! The store that the settings name.

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_cluster::store::etcd::{Config, Etcd, Tls};
use evenkeel_cluster::store::{EventSink, boot_clock};
use evenkeel_config::{Settings, endpoints_of};

/// The first part of all keys in the store.
const PREFIX: &str = "evenkeel";

fn text(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

/// Checks settings of the store that a single directive cannot check, and the files that they name.
///
/// # Errors
/// The reason, which names the directive.
pub(in crate::cluster) fn check(settings: &Settings) -> Result<(), String> {
    if settings.cluster_store.is_empty() {
        let lacks_store = settings.write_acks.in_sync;
        return if lacks_store { Err("write-acks in-sync needs cluster-store".into()) } else { Ok(()) };
    }
    if !settings.cluster_enabled {
        return Err("cluster-store needs cluster-enabled yes".into());
    }
    if !settings.cluster_store_password.is_empty() && settings.cluster_store_user.is_empty() {
        return Err("cluster-store-password needs cluster-store-user".into());
    }
    if settings.cluster_store_cert.is_empty() != settings.cluster_store_key.is_empty() {
        return Err("cluster-store-cert and cluster-store-key need each other".into());
    }
    let files = [
        ("cluster-store-cacert", &settings.cluster_store_cacert),
        ("cluster-store-cert", &settings.cluster_store_cert),
        ("cluster-store-key", &settings.cluster_store_key),
    ];
    let (has_tls, _) = endpoints_of(&settings.cluster_store)?;
    if has_tls && settings.cluster_store_cacert.is_empty() {
        return Err("cluster-store etcds://... needs cluster-store-cacert".into());
    }
    for (name, file) in files.into_iter().filter(|(_, file)| !file.is_empty()) {
        if !has_tls {
            return Err(format!("{name} needs cluster-store etcds://..."));
        }
        let path = settings.dir.join(text(file));
        std::fs::read(&path).map_err(|error| {
            format!("Cannot read {name} {}: {}", path.display(), evenkeel_config::cause(&error))
        })?;
    }
    Ok(())
}

/// The store of the settings. `expected`: the identity of the cluster that the node belongs to, if it knows
/// one. `identity`: that of a cluster that does not exist yet.
///
/// # Errors
/// The reason why the settings cannot be used.
pub(super) fn config(settings: &Settings, expected: &str, identity: String) -> Result<Config, String> {
    let (has_tls, endpoints) = endpoints_of(&settings.cluster_store)?;
    let path = |word: &[u8]| -> PathBuf { settings.dir.join(text(word)) };
    let own = (!settings.cluster_store_cert.is_empty())
        .then(|| (path(&settings.cluster_store_cert), path(&settings.cluster_store_key)));
    let user = (!settings.cluster_store_user.is_empty())
        .then(|| (text(&settings.cluster_store_user), text(&settings.cluster_store_password)));
    let ttl = settings.cluster_lease * 1_000;
    Ok(Config {
        endpoints,
        tls: has_tls.then(|| Tls { ca: path(&settings.cluster_store_cacert), identity: own }),
        user,
        prefix: PREFIX.into(),
        cluster: text(&settings.cluster_name),
        expected: (!expected.is_empty()).then(|| expected.to_owned()),
        identity,
        ttl,
        timeout: Duration::from_millis((ttl / 3).max(500)),
    })
}

/// Starts the connection.
///
/// # Errors
/// The reason why the settings cannot be used.
pub(super) fn connect(config: Config, sink: EventSink) -> Result<Etcd, String> {
    Etcd::start(config, boot_clock, sink).map_err(|error| error.to_string())
}

/// The address of this machine from which packets go to the store; `None`: no name of a member is known.
pub(super) fn local_ip(settings: &Settings) -> Option<String> {
    let (_, endpoints) = endpoints_of(&settings.cluster_store).ok()?;
    let towards = |endpoint: &String| {
        let any = if endpoint.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = std::net::UdpSocket::bind(any).ok()?;
        socket.connect(endpoint.as_str()).ok()?; // sends nothing
        Some(socket.local_addr().ok()?.ip().to_string())
    };
    endpoints.iter().find_map(towards)
}
