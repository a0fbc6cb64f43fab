//! Reads certificates of peers, which may hold anything: only the exact forms that Postroad writes come through.

use std::collections::BTreeSet;

use postroad_cluster::{
    id::{Name, NodeId, Role},
    limits::{CERTIFICATE_BYTES_MAX, CERTIFICATE_CHAIN_MAX},
    time::WallTime,
};
use x509_parser::{
    certificate::{BasicExtension, TbsCertificate, X509Certificate},
    error::X509Error,
    extensions::GeneralName,
    oid_registry::OID_SIG_ED25519,
    prelude::FromDer,
};

use super::{CertificateName, Window, cluster_domain};
use crate::{PublicKey, Serial, TrustError, error::Place};

/// A node's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) cluster: Name,
    pub(crate) node: NodeId,
    pub(crate) roles: BTreeSet<Role>,
    pub(crate) public: PublicKey,
    pub(crate) serial: Serial,
    pub(crate) window: Window,
}

/// The certificate of a control node's issuing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IssuerCertificate {
    pub(crate) cluster: Name,
    pub(crate) node: NodeId,
    pub(crate) public: PublicKey,
    pub(crate) serial: Serial,
    pub(crate) window: Window,
}

/// The certificate of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorityCertificate {
    pub(crate) cluster: Name,
    pub(crate) public: PublicKey,
    pub(crate) window: Window,
}

/// Refuses a chain by its size, before any of it is read.
pub(crate) fn check_bounds(chain: &[&[u8]]) -> Result<(), TrustError> {
    if !(1..=CERTIFICATE_CHAIN_MAX).contains(&chain.len()) {
        return Err(TrustError::ChainLength { found: chain.len() });
    }
    chain.iter().try_for_each(|certificate| check_size(certificate))
}

fn check_size(der: &[u8]) -> Result<(), TrustError> {
    if der.len() > CERTIFICATE_BYTES_MAX {
        return Err(TrustError::CertificateTooLarge { bytes: der.len() });
    }
    Ok(())
}

pub(crate) fn leaf(der: &[u8]) -> Result<Leaf, TrustError> {
    let certificate = open(der, Place::Leaf)?;
    let reader = Reader { tbs: &certificate.tbs_certificate, place: Place::Leaf };
    reader.leaf_usage()?;
    let (names, cluster) = reader.names()?;
    let (mut node, mut roles) = (None, BTreeSet::new());
    for name in names {
        let first = match name {
            CertificateName::Node(found) => node.replace(found).is_none(),
            CertificateName::Role(role) => roles.insert(role),
            _ => false,
        };
        if !first {
            return Err(reader.malformed("its names are not those of one node"));
        }
    }
    let Some(node) = node.filter(|_| !roles.is_empty()) else {
        return Err(reader.malformed("it names no node, or no role"));
    };
    let (public, serial, window) = (reader.public()?, reader.serial()?, reader.window()?);
    Ok(Leaf { cluster, node, roles, public, serial, window })
}

pub(crate) fn issuer(der: &[u8]) -> Result<IssuerCertificate, TrustError> {
    let certificate = open(der, Place::Issuer)?;
    let reader = Reader { tbs: &certificate.tbs_certificate, place: Place::Issuer };
    reader.issuer_usage(0)?;
    let (names, cluster) = reader.names()?;
    let [CertificateName::Issuer(node)] = names[..] else {
        return Err(reader.malformed("its names are not those of one issuer"));
    };
    reader.confined_to(&cluster)?;
    let (public, serial, window) = (reader.public()?, reader.serial()?, reader.window()?);
    Ok(IssuerCertificate { cluster, node, public, serial, window })
}

pub(crate) fn authority(der: &[u8]) -> Result<AuthorityCertificate, TrustError> {
    let certificate = open(der, Place::Authority)?;
    let reader = Reader { tbs: &certificate.tbs_certificate, place: Place::Authority };
    reader.issuer_usage(1)?;
    let (names, cluster) = reader.names()?;
    if names != [CertificateName::Authority] {
        return Err(reader.malformed("its names are not those of one authority"));
    }
    reader.confined_to(&cluster)?;
    let (public, window) = (reader.public()?, reader.window()?);
    reader.serial()?;
    Ok(AuthorityCertificate { cluster, public, window })
}

fn open(der: &[u8], place: Place) -> Result<X509Certificate<'_>, TrustError> {
    check_size(der)?;
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(TrustError::CertificateMalformed { place, reason: "bytes follow its end" }),
        Err(_) => Err(TrustError::CertificateMalformed { place, reason: "it is no X.509 certificate" }),
    }
}

/// One certificate that is being read, and what to call it in errors.
struct Reader<'a> {
    tbs: &'a TbsCertificate<'a>,
    place: Place,
}

impl Reader<'_> {
    const fn malformed(&self, reason: &'static str) -> TrustError {
        TrustError::CertificateMalformed { place: self.place, reason }
    }

    /// The value of an extension that must be there once.
    fn extension<'x, T>(&self, read: Result<Option<BasicExtension<&'x T>>, X509Error>) -> Result<&'x T, TrustError> {
        match read {
            Ok(Some(extension)) => Ok(extension.value),
            Ok(None) => Err(self.malformed("an extension is missing")),
            Err(_) => Err(self.malformed("an extension is there twice or unreadable")),
        }
    }

    fn leaf_usage(&self) -> Result<(), TrustError> {
        if self.extension(self.tbs.basic_constraints())?.ca {
            return Err(TrustError::CertificateIssuerFlag { place: self.place });
        }
        let usage = self.extension(self.tbs.key_usage())?;
        let extended = match self.tbs.extended_key_usage() {
            Ok(None) => return Err(TrustError::CertificateUsage { place: self.place }),
            read => self.extension(read)?,
        };
        let other = extended.any
            || extended.code_signing
            || extended.email_protection
            || extended.time_stamping
            || extended.ocsp_signing
            || !extended.other.is_empty();
        let fits = usage.digital_signature() && !usage.key_cert_sign() && !other;
        if fits && extended.client_auth && extended.server_auth {
            return Ok(());
        }
        Err(TrustError::CertificateUsage { place: self.place })
    }

    fn issuer_usage(&self, path_length: u32) -> Result<(), TrustError> {
        let constraints = match self.tbs.basic_constraints() {
            Ok(None) => return Err(TrustError::CertificateIssuerFlag { place: self.place }),
            read => self.extension(read)?,
        };
        if !constraints.ca {
            return Err(TrustError::CertificateIssuerFlag { place: self.place });
        }
        if constraints.path_len_constraint != Some(path_length) {
            return Err(TrustError::CertificatePathTooLong);
        }
        if !self.extension(self.tbs.key_usage())?.key_cert_sign() {
            return Err(TrustError::CertificateUsage { place: self.place });
        }
        Ok(())
    }

    fn confined_to(&self, cluster: &Name) -> Result<(), TrustError> {
        let confined = match self.tbs.name_constraints() {
            Ok(None) => false,
            read => {
                let found = self.extension(read)?;
                let domain = cluster_domain(cluster);
                let permitted = found.permitted_subtrees.as_deref().unwrap_or_default();
                matches!(permitted, [only] if only.base == GeneralName::DNSName(&domain))
                    && found.excluded_subtrees.is_none()
            }
        };
        if confined { Ok(()) } else { Err(TrustError::CertificateNameConstraint { place: self.place }) }
    }

    /// All names, and the one cluster that they are in.
    fn names(&self) -> Result<(Vec<CertificateName>, Name), TrustError> {
        let found = &self.extension(self.tbs.subject_alternative_name())?.general_names;
        let mut names = Vec::with_capacity(found.len());
        let mut cluster = None;
        for name in found {
            let GeneralName::DNSName(dns) = name else {
                return Err(self.malformed("it has a name that is no domain name"));
            };
            let Some((name, its_cluster)) = CertificateName::parse(dns) else {
                return Err(self.malformed("it has a name that is none of Postroad's"));
            };
            if cluster.get_or_insert_with(|| its_cluster.clone()) != &its_cluster {
                return Err(self.malformed("it names two clusters"));
            }
            names.push(name);
        }
        cluster.map(|cluster| (names, cluster)).ok_or_else(|| self.malformed("it has no name"))
    }

    fn public(&self) -> Result<PublicKey, TrustError> {
        let info = &self.tbs.subject_pki;
        let bits = &info.subject_public_key;
        match <[u8; 32]>::try_from(bits.data.as_ref()) {
            Ok(bytes) if info.algorithm.algorithm == OID_SIG_ED25519 && bits.unused_bits == 0 => Ok(PublicKey(bytes)),
            _ => Err(self.malformed("its key is not Ed25519")),
        }
    }

    fn serial(&self) -> Result<Serial, TrustError> {
        match <[u8; 16]>::try_from(self.tbs.raw_serial()) {
            Ok(bytes) if (0x40..=0x7f).contains(&bytes[0]) => Ok(Serial(bytes)),
            _ => Err(self.malformed("its serial number is not of 16 bytes beginning with 40 to 7f")),
        }
    }

    fn window(&self) -> Result<Window, TrustError> {
        let validity = self.tbs.validity();
        let (starts, expires) = (millis(validity.not_before.timestamp()), millis(validity.not_after.timestamp()));
        match (starts, expires) {
            (Some(starts), Some(expires)) if starts < expires => Ok(Window { starts, expires }),
            _ => Err(self.malformed("its time ends before it begins")),
        }
    }
}

fn millis(seconds: i64) -> Option<WallTime> {
    u64::try_from(seconds).ok()?.checked_mul(1_000).map(WallTime)
}
