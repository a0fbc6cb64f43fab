//! Chains of certificates that a peer shows: whatever is accepted is a good chain to the byte.

use std::sync::OnceLock;

use postroad_cluster::{
    id::{NodeId, Role},
    limits::CERTIFICATE_LIFETIME,
    time::WallTime,
};
use postroad_trust::{Anchors, Authority, Issuer, SigningKey, Subject, read_identity};

use crate::mutation::{Repeating, edited};

/// 2026-01-01 00:00 UTC.
const WALL: WallTime = WallTime(1_767_225_600_000);

struct Good {
    anchors: Anchors,
    chain: Vec<Vec<u8>>,
}

fn good() -> &'static Good {
    static GOOD: OnceLock<Good> = OnceLock::new();
    GOOD.get_or_init(|| {
        let cluster = "harbour".parse().expect("it is a name");
        let authority = Authority::create(&cluster, &Repeating(1), WALL).expect("an authority is made");
        let key = SigningKey::generate(&Repeating(2));
        let certificate = authority.certify_issuer(key.public(), NodeId(1), WALL, &Repeating(3));
        let certificate = certificate.expect("an issuer is certified");
        let issuer = Issuer::new(cluster.clone(), key, certificate).expect("an issuer is made");
        let roles = [Role::Node, Role::Relay].into();
        let subject = Subject { node: NodeId(7), roles, lifetime: CERTIFICATE_LIFETIME };
        let chain = issuer.issue(&subject, SigningKey::generate(&Repeating(4)).public(), WALL, &Repeating(5));
        Good {
            anchors: Anchors::of_authority(cluster, authority.certificate().to_vec()),
            chain: chain.expect("a node is certified"),
        }
    })
}

/// The data as one certificate, and as edits of one certificate of a good chain.
pub(crate) fn run(data: &[u8]) {
    let good = good();
    let Some((which, data)) = data.split_first() else { return };
    let place = usize::from(*which) % good.chain.len();
    let near = edited(&good.chain[place], data);
    for certificate in [data, &near] {
        let mut chain: Vec<&[u8]> = good.chain.iter().map(Vec::as_slice).collect();
        chain[place] = certificate;
        let known = good.chain[place] == certificate;
        let verified = good.anchors.verify_chain(&chain, WALL);
        assert_eq!(verified.is_ok(), known, "a certificate that nobody signed was accepted, or a good one was not");
        if let Err(error) = verified {
            assert!(!error.to_string().is_empty());
        }
        let _ = read_identity(&chain);
        // An authority that does not read is passed over.
        let anchors = Anchors { authorities: vec![certificate.to_vec()], ..good.anchors.clone() };
        let _ = anchors.verify_chain(&[certificate], WALL);
    }
}
