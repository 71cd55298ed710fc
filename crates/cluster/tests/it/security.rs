//! TLS, and users with passwords.

use std::path::{Path, PathBuf};

use evenkeel_cluster::store::StoreError;
use evenkeel_cluster::store::etcd::{Config, Tls};
use evenkeel_cluster::{Change, Outcome, Shard, ShardId};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::etcd::{Connection, Connects, Members, is_missing};

fn shard() -> Change {
    Change::Shard(ShardId::new([5; 20]), Shard::default())
}

/// Writes an authority, and a certificate of it for loopback. Returns authority, certificate and key.
fn certificates(folder: &Path) -> [PathBuf; 3] {
    let files = ["ca.pem", "cert.pem", "key.pem"].map(|name| folder.join(name));
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "authority");
    let authority_key = KeyPair::generate().expect("a key");
    let root = authority.self_signed(&authority_key).expect("a certificate");
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()]).expect("valid names");
    let leaf = leaf.signed_by(&key, &issuer).expect("a certificate");
    let texts = [root.pem(), leaf.pem(), key.serialize_pem()];
    for (file, text) in files.iter().zip(texts) {
        std::fs::write(file, text).expect("the folder takes files");
    }
    files
}

#[test]
fn the_client_shows_its_certificate() {
    if is_missing() {
        return;
    }
    let members = Members::with(1, "https", |scratch| {
        let [ca, certificate, key] = certificates(&scratch.path).map(|file| file.display().to_string());
        vec![
            "--client-cert-auth".into(),
            format!("--trusted-ca-file={ca}"),
            format!("--cert-file={certificate}"),
            format!("--key-file={key}"),
        ]
    });
    let [ca, certificate, key] =
        ["ca.pem", "cert.pem", "key.pem"].map(|name| members.scratch.path.join(name));
    let with = |identity| Config { tls: Some(Tls { ca: ca.clone(), identity }), ..members.config() };
    let mut one = Connection::new(with(Some((certificate.clone(), key))));
    one.view("first view", |_| true);
    assert!(matches!(one.put(shard()), Outcome::Committed(_)));
    let two = Connection::new(with(None));
    two.failure("refusal without a certificate", |error| matches!(error, StoreError::Unreachable { .. }));
    let bad = with(Some((certificate, members.scratch.path.join("none.pem"))));
    let error =
        evenkeel_cluster::store::etcd::Etcd::start(bad, || 0, Box::new(drop)).err().expect("no such file");
    assert!(error.to_string().contains("none.pem"), "{error}");
}

#[test]
fn the_client_logs_in_again_when_its_token_has_expired() {
    if is_missing() {
        return;
    }
    let members = Members::with(1, "http", |_| vec!["--auth-token-ttl=2".into()]);
    members.control(&["user", "add", "root:secret"]);
    members.control(&["user", "grant-role", "root", "root"]);
    members.control(&["role", "add", "nodes"]);
    members.control(&["role", "grant-permission", "nodes", "--prefix=true", "readwrite", "/evenkeel/test/"]);
    members.control(&["user", "add", "keel:pass"]);
    members.control(&["user", "grant-role", "keel", "nodes"]);
    members.control(&["auth", "enable"]);
    let user = |name: &str, password: &str| Config {
        user: Some((name.into(), password.into())),
        ..members.config()
    };
    let mut one = Connection::new(user("keel", "pass"));
    one.view("first view", |_| true);
    assert!(matches!(one.put(shard()), Outcome::Committed(_)));
    // Nothing renews the token but use.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(matches!(one.put(shard()), Outcome::Committed(_)));
    let wrong = Connection::new(user("keel", "wrong"));
    let error = wrong.failure("refusal", |error| matches!(error, StoreError::Password { .. }));
    assert!(error.to_string().contains("keel"), "{error}");
    let nobody = Connection::new(members.config());
    nobody.failure("refusal without a user", |error| matches!(error, StoreError::Permission { .. }));
    let other = Connection::new(Config { cluster: "other".into(), ..user("keel", "pass") });
    other.failure("refusal of other keys", |error| matches!(error, StoreError::Permission { .. }));
}
