//! Information in certificates: user names, serial number, and expiry.
//!
//! rustls decides whether a certificate is valid. Nothing here is a reason for trust.

use std::time::Duration;

use pkcs8::der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use pkcs8::der::{Reader, SliceReader, Tag, TagNumber, Tagged};

use evenkeel_config::CertifiedUser;

/// DER encodings of the object identifiers that are searched for.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 29, 17];

/// A certificate's information for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paper {
    /// Serial number in upper-case hexadecimal digits, as OpenSSL shows it.
    pub(crate) serial: String,
    /// Expiry, in seconds since the Unix epoch.
    pub(crate) ends_s: u64,
}

impl Paper {
    /// Parses a certificate in DER; `None` if it cannot be parsed.
    pub(super) fn of(certificate: &[u8]) -> Option<Paper> {
        let fields = fields(certificate)?;
        let validity = parts(fields.get(3)?.value())?;
        let ends_s = time(validity.get(1)?)?.as_secs();
        Some(Paper { serial: serial(fields.first()?.value()), ends_s })
    }

    /// Returns the information of the certificate that expires first.
    pub(super) fn first_to_end<'c>(certificates: impl Iterator<Item = &'c [u8]>) -> Option<Paper> {
        certificates.filter_map(Paper::of).min_by_key(|paper| paper.ends_s)
    }
}

/// Returns the user names in a certificate, in their order: all of its URIs, or its first common name.
pub(crate) fn users(certificate: &[u8], by: CertifiedUser) -> Vec<Vec<u8>> {
    let names = match by {
        CertifiedUser::Off => None,
        CertifiedUser::Cn => common_name(certificate).map(|name| vec![name]),
        CertifiedUser::Uri => uris(certificate),
    };
    names.unwrap_or_default()
}

fn common_name(certificate: &[u8]) -> Option<Vec<u8>> {
    const TEXT: [Tag; 4] = [Tag::Utf8String, Tag::PrintableString, Tag::Ia5String, Tag::TeletexString];
    for set in parts(fields(certificate)?.get(4)?.value())? {
        for attribute in parts(set.value())? {
            let attribute = parts(attribute.value())?;
            if attribute.first()?.value() == COMMON_NAME {
                let name = attribute.get(1)?;
                return TEXT.contains(&name.tag()).then(|| name.value().to_vec());
            }
        }
    }
    None
}

fn uris(certificate: &[u8]) -> Option<Vec<Vec<u8>>> {
    let extensions = fields(certificate)?.into_iter().find(|field| is_numbered(field, TagNumber::N3))?;
    for extension in parts(parts(extensions.value())?.first()?.value())? {
        let extension = parts(extension.value())?;
        if extension.first()?.value() == ALTERNATIVE_NAMES {
            let names = parts(parts(extension.last()?.value())?.first()?.value())?;
            let uris = names.iter().filter(|name| is_numbered(name, TagNumber::N6));
            return Some(uris.map(|name| name.value().to_vec()).collect());
        }
    }
    None
}

/// Returns the signed fields: serial number, algorithm, issuer, validity, subject, key, and more. The version
/// before them is dropped.
fn fields(certificate: &[u8]) -> Option<Vec<AnyRef<'_>>> {
    let certificate = *parts(certificate)?.first()?;
    let mut fields = parts(parts(certificate.value())?.first()?.value())?;
    if is_numbered(fields.first()?, TagNumber::N0) {
        fields.remove(0);
    }
    Some(fields)
}

fn is_numbered(part: &AnyRef<'_>, wanted: TagNumber) -> bool {
    matches!(part.tag(), Tag::ContextSpecific { number, .. } if number == wanted)
}

/// Returns the values that follow each other in these bytes.
fn parts(bytes: &[u8]) -> Option<Vec<AnyRef<'_>>> {
    let mut reader = SliceReader::new(bytes).ok()?;
    let mut parts = Vec::new();
    while !reader.is_finished() {
        parts.push(reader.decode().ok()?);
    }
    Some(parts)
}

fn time(part: &AnyRef<'_>) -> Option<Duration> {
    let short = part.decode_as::<UtcTime>().map(|time| time.to_unix_duration());
    short.or_else(|_| part.decode_as::<GeneralizedTime>().map(|time| time.to_unix_duration())).ok()
}

/// Formats a number without the leading zeros that keep it positive.
fn serial(bytes: &[u8]) -> String {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let digits: String = bytes[zeros..].iter().map(|byte| format!("{byte:02X}")).collect();
    if digits.is_empty() { "0".into() } else { digits }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn whose_it_is() {
        let cn = |certificate: &[u8]| users(certificate, CertifiedUser::Cn);
        assert_eq!(cn(&named("Ann Ö")), ["Ann Ö".as_bytes()]);
        let printable = DnValue::PrintableString("ann".try_into().expect("it can be printed"));
        assert_eq!(cn(&named(printable)), [b"ann"]);
        // Sixteen bits per letter: not the bytes of the user name that it resembles.
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
    fn its_number_and_its_end() {
        let numbered = |bytes: &[u8], year| {
            let certificate = made(|params| {
                params.serial_number = Some(SerialNumber::from_slice(bytes));
                params.not_after = date_time_ymd(year, 1, 1);
            });
            Paper::of(&certificate).expect("it can be read")
        };
        // `date -u -d 2030-01-01 +%s`; from 2050 on, dates are written in another form.
        assert_eq!(numbered(&[0x0a, 0xff], 2030), Paper { serial: "0AFF".into(), ends_s: 1_893_456_000 });
        assert_eq!(numbered(&[0xff; 20], 2060).serial, "FF".repeat(20));
        assert_eq!(numbered(&[1], 2060).ends_s, 2_840_140_800);
        let [one, other] =
            [2031, 2030].map(|year| made(|params| params.not_after = date_time_ymd(year, 1, 1)));
        let first = Paper::first_to_end([&one[..], &[], &other].into_iter());
        assert_eq!(first.map(|paper| paper.ends_s), Some(1_893_456_000));
    }

    /// Changes and truncates bytes of a certificate: parsing returns a value or `None`, and never panics.
    #[test]
    fn any_bytes_are_read() {
        let whole = named("ann");
        let mut readable = 0;
        for at in 0..whole.len() {
            for byte in [0, 0x30, 0x7f, 0x80, 0x84, 0xff] {
                let mut other = whole.clone();
                other[at] = byte;
                readable += usize::from(Paper::of(&other).is_some());
                for by in [CertifiedUser::Cn, CertifiedUser::Uri] {
                    let _ = users(&other, by);
                }
            }
            assert_eq!(Paper::of(&whole[..at]), None);
        }
        assert!(readable > 0);
    }
}
