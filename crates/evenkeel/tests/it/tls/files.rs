//! Certificates and keys in files: broken, new, encrypted.

use std::time::{Duration, Instant};

use evenkeel_testkit::server::free_port;
use evenkeel_testkit::{Client, Server};
use rcgen::{CertificateParams, KeyPair};

use super::certs::{Certs, certificate};
use super::{Secure, start_secure};
use crate::{program, start};

/// A key, and the same key encrypted with the password "secret".
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgDfcltHJmbok/TUEg
qVNc8kp20kqMj5NRWWYqzIpSlE6hRANCAAQY3psPImWHINvbu8r9n+Ib1H7aSncB
VSfP0LJ7d1ZxzmCKdB6jv15PK8PtvEC4Y37sgqiu+AzYZnT1XYFzbZYj
-----END PRIVATE KEY-----
";
const LOCKED_KEY: &str = "\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgN9+x1HeKXAQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEELi3ptMrrCUgy0vMs6bI+A0EgZCx
Umc63K/Ny0QW/EUR7JpA1ipC00J0QF/ga2Df2hKEOMHiGmbt4b8tQAd+g0y8sYfr
0VsIRjtvsFrnbWS6qDCE/gm8FloyiQ5Jy50DYaPAewQaaKVCa7+YjYsEiE8GIIcG
RNut/j1mAKAjSmXJdf6IkZnKJdEb0KZvn26qJ3Vh01B12zIbJeVZxy47rY0r3NQ=
-----END ENCRYPTED PRIVATE KEY-----
";

/// The certificate that the server shows.
fn shown(secure: &Secure, certs: &Certs) -> Vec<u8> {
    let tls_stream = secure.tls_stream(certs.client("client")).expect("let in");
    tls_stream.stream.conn.peer_certificates().expect("the server's")[0].to_vec()
}

fn of_file(certs: &Certs, name: &str) -> Vec<u8> {
    certificate(&certs.path(name)).to_vec()
}

#[test]
fn new_certificates_apply_to_new_connections_only() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &[]);
    let (mut old, mut plain) = (secure.connect(&certs), secure.server.connect());
    assert_eq!(shown(&secure, &certs), of_file(&certs, "server.crt"));
    let before = of_file(&certs, "server.crt");
    certs.replace("server.crt", "other.crt");
    certs.replace("server.key", "other.key");
    assert_eq!(shown(&secure, &certs), before, "files are read when that is asked for");
    // The name is the same, the content is not.
    let set = format!("CONFIG SET tls-cert-file {}", certs.word("server.crt"));
    assert_eq!(plain.run(&set).to_string(), "OK");
    assert_eq!(shown(&secure, &certs), of_file(&certs, "other.crt"));
    assert_eq!(old.run("PING").to_string(), "PONG");
    // Another authority: it refuses new connections with the old certificates, and open connections stay.
    let set = format!("CONFIG SET tls-ca-cert-file {}", certs.word("other-ca.crt"));
    assert_eq!(plain.run(&set).to_string(), "OK");
    assert!(secure.accepts(certs.client("client")).is_err());
    assert_eq!(secure.accepts(certs.client("stranger")), Ok(()));
    assert_eq!(old.run("PING").to_string(), "PONG");
}

#[test]
fn a_folder_of_authorities() {
    let certs = Certs::new();
    let folder = certs.path("authorities");
    std::fs::create_dir(&folder).expect("it can be made");
    for name in ["ca", "other-ca"] {
        std::fs::copy(certs.path(&format!("{name}.crt")), folder.join(format!("{name}.0"))).expect("copied");
    }
    std::fs::write(folder.join("README"), "no certificate").expect("written");
    let folder = folder.display().to_string();
    let secure = start_secure(&certs, &["--tls-ca-cert-file", "", "--tls-ca-cert-dir", &folder]);
    for (name, is_known) in [("client", true), ("stranger", true), ("alone", false)] {
        assert_eq!(secure.accepts(certs.client(name)).is_ok(), is_known, "{name}");
    }
}

#[test]
fn invalid_files_are_named_and_change_nothing() {
    let certs = Certs::new();
    std::fs::write(certs.path("garbage"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .expect("written");
    std::fs::write(certs.path("cut"), &std::fs::read(certs.path("server.crt")).expect("read")[..300])
        .expect("written");
    std::fs::write(certs.path("empty"), "").expect("written");
    let secure = start_secure(&certs, &[]);
    let mut plain = secure.server.connect();
    let before = plain.run("CONFIG GET tls-*").to_string();
    let word = |name: &str| certs.word(name);
    let cases = [
        (format!("tls-cert-file {}", word("nosuch")), "tls-cert-file", "No such file or directory"),
        (format!("tls-cert-file {}", word("garbage")), "tls-cert-file", "the certificate is not usable"),
        (format!("tls-cert-file {}", word("cut")), "tls-cert-file", "section end"),
        (format!("tls-cert-file {}", word("empty")), "tls-cert-file", "no certificate in PEM format found"),
        (format!("tls-cert-file {}", word("")), "tls-cert-file", "not a regular file"),
        (
            format!("tls-cert-file {}", word("other.crt")),
            "tls-cert-file",
            "the private key does not match the certificate",
        ),
        (
            format!("tls-key-file {}", word("other.key")),
            "tls-key-file",
            "the private key does not match the certificate",
        ),
        (format!("tls-key-file {}", word("empty")), "tls-key-file", "no private key in PEM format found"),
        (
            format!("tls-key-file {}", word("server.crt")),
            "tls-key-file",
            "no private key in PEM format found",
        ),
        (format!("tls-ca-cert-file {}", word("garbage")), "tls-ca-cert-file", "garbage: "),
        (
            "tls-ca-cert-file \"\"".into(),
            "tls-ca-cert-file",
            "Either tls-ca-cert-file or tls-ca-cert-dir must be specified",
        ),
        (
            format!("tls-client-cert-file {}", word("client.crt")),
            "tls-client-cert-file",
            "tls-client-key-file is not",
        ),
        ("tls-protocols TLSv1.1".into(), "tls-protocols", "TLSv1.1 is not supported"),
        ("tls-protocols nosuch".into(), "tls-protocols", "Invalid tls-protocols specified"),
        ("tls-ciphers AES128-SHA".into(), "tls-ciphers", "'AES128-SHA' is not supported"),
        ("tls-ciphersuites nosuch".into(), "tls-ciphersuites", "'nosuch' is not supported"),
        (format!("tls-dh-params-file {}", word("empty")), "tls-dh-params-file", "elliptic curves"),
        // All or nothing.
        (format!("tls-auth-clients no tls-cert-file {}", word("nosuch")), "tls-auth-clients", "No such file"),
        (format!("maxclients 77 tls-cert-file {}", word("nosuch")), "tls-cert-file", "No such file"),
    ];
    for (words, directive, reason) in cases {
        let reply = plain.run(&format!("CONFIG SET {words}")).to_string();
        let start = format!(
            "-ERR CONFIG SET failed (possibly related to argument '{directive}') - Unable to update TLS \
             configuration: "
        );
        assert!(reply.starts_with(&start) && reply.contains(reason), "{words}: {reply}");
        assert_eq!(plain.run("CONFIG GET tls-*").to_string(), before, "{words}");
        assert_eq!(secure.accepts(certs.client("client")), Ok(()), "{words}");
        assert!(secure.accepts(certs.client("")).is_err(), "{words}");
    }
    assert!(plain.run("CONFIG GET maxclients").to_string().contains("10000"));
    // A certificate and its key.
    let both = format!("tls-cert-file {} tls-key-file {}", word("other.crt"), word("other.key"));
    assert_eq!(plain.run(&format!("CONFIG SET {both}")).to_string(), "OK");
    assert_eq!(shown(&secure, &certs), of_file(&certs, "other.crt"));
}

#[test]
fn a_start_with_invalid_files_names_them() {
    let certs = Certs::new();
    let port = free_port().to_string();
    let (cert, key, ca) = (certs.word("server.crt"), certs.word("server.key"), certs.word("ca.crt"));
    let cases: [(&[&str], &str); 4] = [
        (&[], "Either tls-ca-cert-file or tls-ca-cert-dir must be specified"),
        (&["--tls-ca-cert-file", &ca], "No tls-cert-file configured!"),
        (&["--tls-ca-cert-file", &ca, "--tls-cert-file", &cert], "No tls-key-file configured!"),
        (
            &["--tls-ca-cert-file", &ca, "--tls-cert-file", &key, "--tls-key-file", &key],
            "no certificate in PEM format",
        ),
    ];
    for (args, reason) in cases {
        let args = [&["--tls-port", &port][..], args].concat();
        let Err(problem) = Server::try_start(&program(), &args) else { panic!("it starts with {args:?}") };
        assert!(problem.contains("Failed to configure TLS: ") && problem.contains(reason), "{problem}");
    }
    // Without a TLS port the files are not read.
    let server = start(&["--tls-cert-file", "/nosuch", "--tls-dh-params-file", "/nosuch"]);
    assert_eq!(server.connect().run("CONFIG SET tls-cert-file /other").to_string(), "OK");
}

#[test]
fn a_key_with_a_password_is_read() {
    let certs = Certs::new();
    let key = KeyPair::from_pem(KEY).expect("a key");
    let own =
        CertificateParams::new(["localhost".to_owned()]).expect("a name").self_signed(&key).expect("signed");
    std::fs::write(certs.path("locked.crt"), own.pem()).expect("written");
    std::fs::write(certs.path("locked.key"), LOCKED_KEY).expect("written");
    let secure = start_secure(&certs, &[]);
    let mut plain = secure.server.connect();
    let files =
        format!("tls-cert-file {} tls-key-file {}", certs.word("locked.crt"), certs.word("locked.key"));
    let mut set = |words: &str| plain.run(&format!("CONFIG SET {files} {words}")).to_string();
    assert!(set("").ends_with("the key is encrypted, and no password is configured"));
    assert!(set("tls-key-file-pass wrong").ends_with("the configured password of the key is wrong"));
    assert_eq!(set("tls-key-file-pass secret"), "OK");
}

#[test]
fn changed_files_are_noticed() {
    let certs = Certs::new();
    let secure = start_secure(&certs, &["--tls-auto-reload-interval", "1"]);
    let mut old = secure.connect(&certs);
    let await_line = |line: &str| {
        let until = Instant::now() + super::TIMEOUT;
        while !secure.server.log().contains(line) {
            assert!(Instant::now() < until, "{line}: {}", secure.server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let before = of_file(&certs, "server.crt");
    // Half of a change has no effect.
    certs.replace("server.key", "other.key");
    await_line("TLS files were not reloaded: tls-cert-file: the private key does not match the certificate");
    assert_eq!(shown(&secure, &certs), before);
    certs.replace("server.crt", "other.crt");
    await_line("have changed and were reloaded");
    assert_eq!(shown(&secure, &certs), of_file(&certs, "other.crt"));
    assert_eq!(old.run("PING").to_string(), "PONG");
    assert_eq!(Client::connect(secure.server.address()).expect("it listens").run("PING").to_string(), "PONG");
}
