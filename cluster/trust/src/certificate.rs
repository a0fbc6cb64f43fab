//! The form of Postroad's certificates: their names, their time, and how each kind is written.

pub(crate) mod read;

use std::collections::BTreeSet;

use postroad_cluster::{
    id::{Name, NodeId, Role},
    limits::CERTIFICATE_EARLY,
    time::{Span, WallTime},
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    KeyUsagePurpose, NameConstraints, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm,
};
use time::OffsetDateTime;

use crate::{PublicKey, Serial, SigningKey, TrustError, error::Place};

/// The domain of every name in a certificate. It is reserved for private use, so that no name is anybody else's.
const DOMAIN: &str = "postroad.internal";

/// One alternative name of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CertificateName {
    Authority,
    Issuer(NodeId),
    Node(NodeId),
    Role(Role),
}

impl CertificateName {
    pub(crate) fn dns(&self, cluster: &Name) -> String {
        let suffix = cluster_domain(cluster);
        match self {
            Self::Authority => format!("authority.{suffix}"),
            Self::Issuer(node) => format!("{}.issuer.{suffix}", node.0),
            Self::Node(node) => format!("{}.node.{suffix}", node.0),
            Self::Role(role) => format!("{role}.role.{suffix}"),
        }
    }

    /// The name and its cluster; none if it is not exactly what [`CertificateName::dns`] writes.
    pub(crate) fn parse(dns: &str) -> Option<(Self, Name)> {
        let (name, cluster) = Self::parse_loosely(dns)?;
        (name.dns(&cluster) == dns).then_some((name, cluster))
    }

    fn parse_loosely(dns: &str) -> Option<(Self, Name)> {
        let labels = dns.strip_suffix(DOMAIN)?.strip_suffix('.')?;
        let (labels, cluster) = labels.rsplit_once('.')?;
        let name = match labels.split_once('.') {
            None if labels == "authority" => Self::Authority,
            Some((node, "issuer")) => Self::Issuer(NodeId(node.parse().ok()?)),
            Some((node, "node")) => Self::Node(NodeId(node.parse().ok()?)),
            Some((role, "role")) => Self::Role(role.parse().ok()?),
            _ => return None,
        };
        Some((name, cluster.parse().ok()?))
    }
}

/// What the names of a cluster's certificates end in.
pub(crate) fn cluster_domain(cluster: &Name) -> String {
    format!("{cluster}.{DOMAIN}")
}

/// When a certificate holds, in whole seconds: from `starts` until just before `expires`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) starts: WallTime,
    pub(crate) expires: WallTime,
}

impl Window {
    /// The window of a certificate issued at `wall`; it begins early for the sake of clocks that are behind.
    pub(crate) const fn issued(wall: WallTime, lifetime: Span) -> Self {
        let (starts, expires) = (wall.before(CERTIFICATE_EARLY), wall.after(lifetime));
        Self { starts: WallTime(starts.0 / 1_000 * 1_000), expires: WallTime(expires.0 / 1_000 * 1_000) }
    }

    /// Checks that `wall` lies in the window; `place` is what to call its certificate.
    pub(crate) fn check(self, place: Place, wall: WallTime) -> Result<(), TrustError> {
        if wall < self.starts {
            return Err(TrustError::CertificateNotYetValid { place, starts: self.starts, wall });
        }
        if wall >= self.expires {
            return Err(TrustError::CertificateExpired { place, expired: self.expires, wall });
        }
        Ok(())
    }

    /// The part of this window that lies in `outer`.
    pub(crate) fn within(self, outer: Self) -> Self {
        Self { starts: self.starts.max(outer.starts), expires: self.expires.min(outer.expires) }
    }
}

/// What the three kinds of certificates share.
pub(crate) struct Draft<'a> {
    pub(crate) cluster: &'a Name,
    pub(crate) window: Window,
    pub(crate) serial: Serial,
}

impl Draft<'_> {
    /// The root of a cluster: may certify issuers, whose own certificates end the path, for this cluster's names.
    pub(crate) fn authority(&self, public: &PublicKey) -> Result<CertificateParams, TrustError> {
        let subject = format!("Postroad authority {}", short(public));
        let mut params = self.params(&subject, &[CertificateName::Authority])?;
        self.make_issuer(&mut params, 1);
        params.use_authority_key_identifier_extension = false;
        Ok(params)
    }

    /// A control node's issuing key: may certify nodes of this cluster.
    pub(crate) fn issuer(&self, node: NodeId, public: &PublicKey) -> Result<CertificateParams, TrustError> {
        let subject = format!("Postroad issuer {node} {}", short(public));
        let mut params = self.params(&subject, &[CertificateName::Issuer(node)])?;
        self.make_issuer(&mut params, 0);
        Ok(params)
    }

    /// A node, for both ends of a TLS connection.
    pub(crate) fn leaf(&self, node: NodeId, roles: &BTreeSet<Role>) -> Result<CertificateParams, TrustError> {
        let mut names = vec![CertificateName::Node(node)];
        names.extend(roles.iter().copied().map(CertificateName::Role));
        let mut params = self.params(&format!("Postroad node {node}"), &names)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        Ok(params)
    }

    fn params(&self, subject: &str, names: &[CertificateName]) -> Result<CertificateParams, TrustError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, self.cluster.as_str());
        params.distinguished_name.push(DnType::CommonName, subject);
        params.not_before = date(self.window.starts)?;
        params.not_after = date(self.window.expires)?;
        params.serial_number = Some(SerialNumber::from_slice(&self.serial.0));
        params.use_authority_key_identifier_extension = true;
        for name in names {
            params
                .subject_alt_names
                .push(SanType::DnsName(name.dns(self.cluster).try_into().map_err(|error| unwritable(&error))?));
        }
        Ok(params)
    }

    fn make_issuer(&self, params: &mut CertificateParams, path_length: u8) {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName(cluster_domain(self.cluster))],
            excluded_subtrees: Vec::new(),
        });
    }
}

/// The beginning of a key, which keeps the names of two authorities, or of two issuers of one node, apart.
fn short(public: &PublicKey) -> String {
    public.to_string()[..16].to_owned()
}

fn date(at: WallTime) -> Result<OffsetDateTime, TrustError> {
    let seconds = i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds)
        .map_err(|_| TrustError::CertificateUnwritable { reason: "its time is after the year 9999".to_owned() })
}

pub(crate) fn unwritable(error: &rcgen::Error) -> TrustError {
    TrustError::CertificateUnwritable { reason: error.to_string() }
}

/// Our keys as rcgen wants them.
pub(crate) struct Signer<'a>(pub(crate) &'a SigningKey, PublicKey);

impl<'a> Signer<'a> {
    pub(crate) const fn new(key: &'a SigningKey) -> Self {
        Self(key, key.public())
    }
}

impl PublicKeyData for Signer<'_> {
    fn der_bytes(&self) -> &[u8] {
        &self.1.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

impl rcgen::SigningKey for Signer<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.0.sign(message))
    }
}

/// The key that a certificate is about, as rcgen wants it.
pub(crate) struct Certified(pub(crate) PublicKey);

impl PublicKeyData for Certified {
    fn der_bytes(&self) -> &[u8] {
        &self.0.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_only_as_they_are_written() {
        let cluster: Name = "prod-1".parse().unwrap();
        let names = [
            CertificateName::Authority,
            CertificateName::Issuer(NodeId(1)),
            CertificateName::Node(NodeId(u64::MAX)),
            CertificateName::Role(Role::Relay),
        ];
        for name in names {
            let dns = name.dns(&cluster);
            assert_eq!(CertificateName::parse(&dns), Some((name, cluster.clone())), "{dns}");
        }
        for bad in [
            "",
            "postroad.internal",
            "prod.postroad.internal",
            "node.prod.postroad.internal",
            "07.node.prod.postroad.internal",
            "+7.node.prod.postroad.internal",
            "7.node.PROD.postroad.internal",
            "7.node.prod.postroad.internal.",
            "7.node.prod.evil.postroad.internal",
            "7.node.prodpostroad.internal",
            "x.7.node.prod.postroad.internal",
            "18446744073709551616.node.prod.postroad.internal",
            "root.role.prod.postroad.internal",
            "Control.role.prod.postroad.internal",
            "*.role.prod.postroad.internal",
        ] {
            assert_eq!(CertificateName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn windows_are_whole_seconds_and_saturate() {
        let window = Window::issued(WallTime(7_200_999), Span::from_secs(1));
        assert_eq!(window, Window { starts: WallTime(3_600_000), expires: WallTime(7_201_000) });
        assert_eq!(Window::issued(WallTime(5), Span::ZERO).starts, WallTime(0));
        let late = Window::issued(WallTime(u64::MAX), Span::MAX);
        let draft = Draft { cluster: &"a".parse().unwrap(), window: late, serial: Serial([0x40; 16]) };
        let refused = draft.leaf(NodeId(1), &BTreeSet::new()).unwrap_err();
        assert_eq!(refused.code(), "CERTIFICATE_UNWRITABLE");
    }
}
