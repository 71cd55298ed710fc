//! Facts that are read from certificates: the users that they name, serial number and end of validity.
//!
//! rustls judges whether a certificate can be trusted. The users of a certificate are asked for only after
//! rustls has verified it. A certificate that is not DER, or not laid out as RFC 5280 says, has no facts and
//! names no user. Neither has a certificate with an object identifier that `const-oid` 0.9 cannot hold: of
//! 40 bytes or more, or with a number above 2^32, as identifiers made from UUIDs have (2.25.x).

use x509_cert::Certificate;
use x509_cert::der::oid::db::rfc4519::COMMON_NAME;
use x509_cert::der::{Decode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use evenkeel_config::CertifiedUser;

/// A certificate's information for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Serial number, in upper case hexadecimal digits, as OpenSSL shows it.
    pub serial: String,
    /// End of validity, in seconds since the Unix epoch.
    pub not_after_s: u64,
}

impl CertificateInfo {
    /// Reads a certificate in DER; `None` if it is malformed.
    pub(super) fn of(certificate: &[u8]) -> Option<CertificateInfo> {
        let fields = Certificate::from_der(certificate).ok()?.tbs_certificate;
        let not_after_s = fields.validity.not_after.to_unix_duration().as_secs();
        Some(CertificateInfo { serial: serial(fields.serial_number.as_bytes()), not_after_s })
    }

    /// Returns the certificate that expires first, malformed certificates left out.
    pub(super) fn first_to_expire<'c>(
        certificates: impl Iterator<Item = &'c [u8]>,
    ) -> Option<CertificateInfo> {
        certificates.filter_map(CertificateInfo::of).min_by_key(|info| info.not_after_s)
    }
}

/// Returns the names of users in a certificate, in their order: all of its URIs, or its first common name.
pub fn users(certificate: &[u8], by: CertifiedUser) -> Vec<Vec<u8>> {
    let names: fn(&Certificate) -> Option<Vec<Vec<u8>>> = match by {
        CertifiedUser::Off => return Vec::new(),
        CertifiedUser::Cn => |certificate| common_name(certificate).map(|name| vec![name]),
        CertifiedUser::Uri => uris,
    };
    Certificate::from_der(certificate).ok().as_ref().and_then(names).unwrap_or_default()
}

/// Returns the bytes of the first common name. Only strings of one byte a letter, or of UTF-8, are taken: the
/// bytes of a UTF-16 string are not the name that it shows.
fn common_name(certificate: &Certificate) -> Option<Vec<u8>> {
    const TEXT: [Tag; 4] = [Tag::Utf8String, Tag::PrintableString, Tag::Ia5String, Tag::TeletexString];
    let mut attributes = certificate.tbs_certificate.subject.0.iter().flat_map(|name| name.0.iter());
    let name = &attributes.find(|attribute| attribute.oid == COMMON_NAME)?.value;
    TEXT.contains(&name.tag()).then(|| name.value().to_vec())
}

/// Returns the URIs among the alternative names. A certificate that has that extension twice names no user.
fn uris(certificate: &Certificate) -> Option<Vec<Vec<u8>>> {
    let (_, names) = certificate.tbs_certificate.get::<SubjectAltName>().ok()??;
    let uris = names.0.into_iter().filter_map(|name| match name {
        GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_str().as_bytes().to_vec()),
        _ => None,
    });
    Some(uris.collect())
}

/// Returns hexadecimal digits, without the zeros that keep the number from being negative.
fn serial(bytes: &[u8]) -> String {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let digits: String = bytes[zeros..].iter().map(|byte| format!("{byte:02X}")).collect();
    if digits.is_empty() { "0".into() } else { digits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_cert::der::asn1::{Any, AnyRef};
    use x509_cert::der::{Encode, Reader, SliceReader, TagNumber};

    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType, SerialNumber, date_time_ymd};

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.distinguished_name = rcgen::DistinguishedName::new();
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("signed").der().to_vec()
    }

    fn named(value: impl Into<DnValue>) -> Vec<u8> {
        made(|params| {
            params.distinguished_name.push(DnType::OrganizationName, "nobody");
            params.distinguished_name.push(DnType::CommonName, value);
        })
    }

    #[test]
    fn certificate_user_names() {
        let cn = |certificate: &[u8]| users(certificate, CertifiedUser::Cn);
        assert_eq!(cn(&named("Ann Ö")), ["Ann Ö".as_bytes()]);
        let printable = DnValue::PrintableString("ann".try_into().expect("it can be printed"));
        assert_eq!(cn(&named(printable)), [b"ann"]);
        // Sixteen bits a letter: the bytes differ from the name that the certificate shows.
        let wide = DnValue::BmpString("ann".try_into().expect("it has such letters"));
        assert!(cn(&named(wide)).is_empty());
        // Bytes behind a zero belong to the name.
        assert_eq!(cn(&named("ann\0.example")), [b"ann\0.example"]);
        assert!(cn(&made(|_| {})).is_empty() && users(&named("ann"), CertifiedUser::Off).is_empty());

        let uri = |text: &str| SanType::URI(text.try_into().expect("ASCII"));
        let both = made(|params| params.subject_alt_names.extend([uri("urn:x:1"), uri("urn:x:2")]));
        assert_eq!(users(&both, CertifiedUser::Uri), [b"urn:x:1", b"urn:x:2"]);
        assert!(users(&named("ann"), CertifiedUser::Uri).is_empty());
    }

    #[test]
    fn certificate_serial_number_and_expiry() {
        let numbered = |bytes: &[u8], year| {
            let certificate = made(|params| {
                params.serial_number = Some(SerialNumber::from_slice(bytes));
                params.not_after = date_time_ymd(year, 1, 1);
            });
            CertificateInfo::of(&certificate).expect("it can be read")
        };
        // `date -u -d 2030-01-01 +%s`; from 2050 on, dates are written in another way.
        assert_eq!(
            numbered(&[0x0a, 0xff], 2030),
            CertificateInfo { serial: "0AFF".into(), not_after_s: 1_893_456_000 }
        );
        assert_eq!(numbered(&[0xff; 20], 2060).serial, "FF".repeat(20));
        assert_eq!(numbered(&[1], 2060).not_after_s, 2_840_140_800);
        let [one, other] =
            [2031, 2030].map(|year| made(|params| params.not_after = date_time_ymd(year, 1, 1)));
        let first = CertificateInfo::first_to_expire([&one[..], &[], &other].into_iter());
        assert_eq!(first.map(|info| info.not_after_s), Some(1_893_456_000));
    }

    /// Bytes of a certificate changed and cut off: there is an answer or none, and nothing worse.
    #[test]
    fn arbitrary_certificates_do_not_panic() {
        let whole = named("ann");
        let mut readable = 0;
        for at in 0..whole.len() {
            for byte in [0, 0x30, 0x7f, 0x80, 0x84, 0xff] {
                let mut other = whole.clone();
                other[at] = byte;
                readable += usize::from(CertificateInfo::of(&other).is_some());
                for by in [CertifiedUser::Cn, CertifiedUser::Uri] {
                    let _ = users(&other, by);
                }
            }
            assert_eq!(CertificateInfo::of(&whole[..at]), None);
        }
        assert!(readable > 0);
    }

    fn element(tag: Tag, contents: &[u8]) -> Vec<u8> {
        Any::new(tag, contents).and_then(|element| element.to_der()).expect("it is short")
    }

    /// The elements inside a sequence, each with its tag and length.
    fn inside(sequence: &[u8]) -> Vec<Vec<u8>> {
        let mut reader = SliceReader::new(AnyRef::from_der(sequence).expect("DER").value()).expect("short");
        let mut elements = Vec::new();
        while !reader.is_finished() {
            elements.push(reader.tlv_bytes().expect("an element").to_vec());
        }
        elements
    }

    /// A certificate whose fields are changed: version, serial number, algorithm, issuer, validity, subject,
    /// key and extensions, in this order before `change`. The lengths around them are right.
    fn rearranged(certificate: &[u8], change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Vec<u8> {
        let mut parts = inside(certificate);
        let mut fields = inside(&parts[0]);
        change(&mut fields);
        parts[0] = element(Tag::Sequence, &fields.concat());
        element(Tag::Sequence, &parts.concat())
    }

    fn assert_malformed(certificate: &[u8]) {
        assert_eq!(CertificateInfo::of(certificate), None);
        assert!(users(certificate, CertifiedUser::Cn).is_empty());
        assert!(users(certificate, CertifiedUser::Uri).is_empty());
    }

    /// No field is taken for another because it stands in its place.
    #[test]
    fn fields_in_another_order_are_refused() {
        let whole = named("ann");
        assert_eq!(rearranged(&whole, |_| {}), whole);
        let count = inside(&inside(&whole)[0]).len();
        assert_eq!(count, 8);
        for at in 0..count {
            // Fields 3 and 5 are equal: the issuer of a certificate that signs itself is its subject.
            for other in at + 1..count {
                if (at, other) != (3, 5) {
                    assert_malformed(&rearranged(&whole, |fields| fields.swap(at, other)));
                }
            }
            assert_malformed(&rearranged(&whole, |fields| fields.insert(at, fields[at].clone())));
            // Version and extensions are optional.
            if at != 0 && at != 7 {
                assert_malformed(&rearranged(&whole, |fields| drop(fields.remove(at))));
            }
            assert_malformed(&rearranged(&whole, |fields| fields[at] = element(Tag::Null, &[])));
        }
    }

    #[test]
    fn the_subject_is_the_user_and_not_the_issuer() {
        let subject = inside(&inside(&named("bob"))[0])[5].clone();
        let other = rearranged(&named("ann"), |fields| fields[5] = subject.clone());
        assert_eq!(users(&other, CertifiedUser::Cn), [b"bob"]);
        // Of two common names, the first.
        let both = rearranged(&named("ann"), |fields| {
            let names = [inside(&fields[5]), inside(&subject)].concat();
            fields[5] = element(Tag::Sequence, &names.concat());
        });
        assert_eq!(users(&both, CertifiedUser::Cn), [b"ann"]);
    }

    /// Lengths that reach far beyond the end of the certificate, or that are no lengths in DER.
    #[test]
    fn invalid_lengths_are_refused() {
        let whole = named("ann");
        let lengths: [&[u8]; 8] = [
            &[0x80],                         // up to an end mark
            &[0x84, 0xff, 0xff, 0xff, 0xff], // 4 GiB
            &[0x84, 0x0f, 0xff, 0xff, 0xff], // 256 MiB
            &[0x84, 0, 0, 0, 1],             // longer than it has to be
            &[0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0xff],
            &[0x7f],
            &[],
        ];
        let with_length = |der: &[u8], length: &[u8]| {
            let header_len = der.len() - AnyRef::from_der(der).expect("DER").value().len();
            [&der[..1], length, &der[header_len..]].concat()
        };
        for length in lengths {
            assert_malformed(&with_length(&whole, length));
            for at in 0..8 {
                let changed = rearranged(&whole, |fields| fields[at] = with_length(&fields[at], length));
                assert_malformed(&changed);
            }
        }
        assert_malformed(&[&whole[..], &[0]].concat());
        assert_malformed(&[&whole[..], &whole].concat());
        assert_malformed(&[]);
    }

    /// A value inside a name is not looked into, however deep it goes.
    #[test]
    fn nesting_takes_no_stack() {
        let mut deep = element(Tag::Null, &[]);
        for _ in 0..5000 {
            deep = element(Tag::Sequence, &deep);
        }
        let name = |value: &[u8]| {
            let attribute = [&COMMON_NAME.to_der().expect("it is short"), value].concat();
            element(Tag::Sequence, &element(Tag::Set, &element(Tag::Sequence, &attribute)))
        };
        let in_name = rearranged(&named("ann"), |fields| fields[5] = name(&deep));
        assert!(CertificateInfo::of(&in_name).is_some());
        assert!(users(&in_name, CertifiedUser::Cn).is_empty());
        assert_malformed(&rearranged(&named("ann"), |fields| fields[5] = deep.clone()));
        assert_malformed(&deep);
    }

    #[test]
    fn invalid_alternative_names_yield_no_user() {
        let uri = |text: &[u8]| {
            let tag = Tag::ContextSpecific { constructed: false, number: TagNumber::N6 };
            element(tag, text)
        };
        let with_names = |contents: &[&[u8]]| {
            let certificate = made(|params| {
                params.subject_alt_names.clear();
                let extensions = contents.iter().map(|content| {
                    rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], content.to_vec())
                });
                params.custom_extensions.extend(extensions);
            });
            assert!(CertificateInfo::of(&certificate).is_some());
            users(&certificate, CertifiedUser::Uri)
        };
        let names = |uris: &[&[u8]]| {
            let uris: Vec<_> = uris.iter().map(|text| uri(text)).collect();
            element(Tag::Sequence, &uris.concat())
        };
        assert_eq!(with_names(&[&names(&[b"urn:x:1", b""])]), [&b"urn:x:1"[..], b""]);
        // Bytes behind a zero belong to the name.
        assert_eq!(with_names(&[&names(&[b"urn:x\0y"])]), [b"urn:x\0y"]);
        assert!(with_names(&[]).is_empty() && with_names(&[&names(&[])]).is_empty());
        let twice = names(&[b"urn:x:1"]);
        assert!(with_names(&[&twice, &twice]).is_empty());
        assert!(with_names(&[&names(&[b"urn:\xc3\xb6"])]).is_empty());
        assert!(with_names(&[&twice[..twice.len() - 1]]).is_empty());
        assert!(with_names(&[&[&twice[..], &[0]].concat()]).is_empty());
        assert!(with_names(&[b""]).is_empty() && with_names(&[&uri(b"urn:x:1")]).is_empty());
    }
}
