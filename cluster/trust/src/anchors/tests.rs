//! Every way in which a chain can be wrong, each with its own code, and mutations of good ones.

use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyUsagePurpose, PublicKeyData,
    SanType, SerialNumber, SignatureAlgorithm,
};

use super::*;
use crate::{
    SigningKey,
    certificate::{Certified, Draft, Signer},
    fixture::{Seeded, WALL, World, refs},
};

const HOUR: Span = Span::from_hours(1);

fn code(anchors: &Anchors, chain: &[Vec<u8>]) -> &'static str {
    code_at(anchors, chain, WALL)
}

fn code_at(anchors: &Anchors, chain: &[Vec<u8>], wall: WallTime) -> &'static str {
    anchors.verify_chain(&refs(chain), wall).map_or_else(|error| error.code(), |_| "OK")
}

fn key(seed: u64) -> SigningKey {
    SigningKey::generate(&Seeded::new(seed))
}

/// What a holder of `issuer_key` could sign, whatever it is allowed.
fn sign(params: &CertificateParams, about: &impl PublicKeyData, issuer: &[u8], issuer_key: &SigningKey) -> Vec<u8> {
    let issuer = CertificateDer::from(issuer);
    let issuer = rcgen::Issuer::from_ca_cert_der(&issuer, Signer::new(issuer_key)).unwrap();
    params.signed_by(about, &issuer).unwrap().der().to_vec()
}

fn draft(cluster: &Name) -> Draft<'_> {
    Draft { cluster, window: Window::issued(WALL, HOUR), serial: Serial([0x41; 16]) }
}

/// A chain whose leaf the issuer signed after `change`.
fn forged_leaf(world: &World, change: impl FnOnce(&mut CertificateParams)) -> Vec<Vec<u8>> {
    let mut params = draft(world.authority.cluster()).leaf(NodeId(7), &[Role::Node].into()).unwrap();
    change(&mut params);
    let leaf = sign(&params, &Certified(key(70).public()), world.issuer.certificate(), &world.issuer_key);
    vec![leaf, world.issuer.certificate().to_vec()]
}

/// A chain whose issuer the authority `root` signed after `change`. `root_key` is the key of `root`.
fn forged_issuer(root: &[u8], root_key: &SigningKey, change: impl FnOnce(&mut CertificateParams)) -> Vec<Vec<u8>> {
    let cluster: Name = "prod".parse().unwrap();
    let mut params = draft(&cluster).issuer(NodeId(1), &key(71).public()).unwrap();
    change(&mut params);
    let issuer = sign(&params, &Certified(key(71).public()), root, root_key);
    let leaf = draft(&cluster).leaf(NodeId(7), &[Role::Node].into()).unwrap();
    vec![sign(&leaf, &Certified(key(70).public()), &issuer, &key(71)), issuer]
}

/// An authority whose key the test holds.
fn open_authority(change: impl FnOnce(&mut CertificateParams)) -> (Anchors, Vec<u8>, SigningKey) {
    let (cluster, root_key): (Name, _) = ("prod".parse().unwrap(), key(72));
    let mut params = draft(&cluster).authority(&root_key.public()).unwrap();
    change(&mut params);
    let root = params.self_signed(&Signer::new(&root_key)).unwrap().der().to_vec();
    (Anchors::of_authority(cluster, root.clone()), root, root_key)
}

#[test]
fn a_good_chain_is_trusted_with_or_without_its_authority() {
    let world = World::new(1);
    let mut chain = world.issue(7, &[Role::Relay, Role::Node]);
    let verified = world.anchors().verify_chain(&refs(&chain), WALL).unwrap();
    assert_eq!(verified.get(), &crate::read_identity(&refs(&chain)).unwrap());
    assert_eq!(verified.get().roles, [Role::Relay, Role::Node].into());
    chain.push(world.authority.certificate().to_vec());
    assert_eq!(world.anchors().verify_chain(&refs(&chain), WALL).unwrap(), verified);
    chain.push(world.authority.certificate().to_vec());
    assert_eq!(code(&world.anchors(), &chain), "OK");
}

#[test]
fn chains_have_bounds() {
    let world = World::new(1);
    let chain = world.issue(7, &[Role::Node]);
    let anchors = world.anchors();
    assert_eq!(code(&anchors, &[]), "CERTIFICATE_CHAIN_LENGTH");
    assert_eq!(code(&anchors, &vec![chain[1].clone(); 5]), "CERTIFICATE_CHAIN_LENGTH");
    assert_eq!(code(&anchors, &[chain[0].clone(), vec![0x30; 4_097]]), "CERTIFICATE_TOO_LARGE");
    assert_eq!(code(&anchors, &chain[..1]), "CERTIFICATE_MALFORMED");
    assert_eq!(code(&anchors, &[vec![], chain[1].clone()]), "CERTIFICATE_MALFORMED");
    let trailing = [chain[0].as_slice(), &[0]].concat();
    assert_eq!(code(&anchors, &[trailing, chain[1].clone()]), "CERTIFICATE_MALFORMED");
}

#[test]
fn a_chain_holds_from_its_start_until_just_before_its_end() {
    let world = World::new(1);
    let (anchors, chain) = (world.anchors(), world.issue(7, &[Role::Node]));
    let identity = anchors.verify_chain(&refs(&chain), WALL).unwrap().into_inner();
    let moment = Span::from_millis(1);
    for (wall, expected) in [
        (identity.starts.before(moment), "CERTIFICATE_NOT_YET_VALID"),
        (identity.starts, "OK"),
        (identity.expires.before(moment), "OK"),
        (identity.expires, "CERTIFICATE_EXPIRED"),
        (WallTime(0), "CERTIFICATE_NOT_YET_VALID"),
        (WallTime(u64::MAX), "CERTIFICATE_EXPIRED"),
    ] {
        assert_eq!(code_at(&anchors, &chain, wall), expected, "{wall:?}");
    }
}

#[test]
fn a_leaf_does_not_outlive_its_issuer_or_authority() {
    let (anchors, root, root_key) = open_authority(|_| {});
    let long = |params: &mut CertificateParams| params.not_after += Span::from_hours(1_000);
    // The issuer claims a thousand hours more than its authority has.
    let chain = forged_issuer(&root, &root_key, long);
    let end = WALL.after(HOUR);
    assert_eq!(anchors.verify_chain(&refs(&chain), WALL).unwrap().get().expires, end);

    let world = World::new(1);
    let chain = forged_leaf(&world, |params| params.not_after += Span::from_hours(24 * 365 * 20));
    let expires = world.anchors().verify_chain(&refs(&chain), WALL).unwrap().get().expires;
    assert_eq!(expires, world.issuer.expires());
    let refused = world.anchors().verify_chain(&refs(&chain), expires).unwrap_err();
    assert!(matches!(refused, TrustError::CertificateExpired { place: Place::Issuer, .. }), "{refused}");

    let (anchors, root, root_key) = open_authority(|params| params.not_after -= Span::from_mins(30));
    let chain = forged_issuer(&root, &root_key, |_| {});
    let refused = anchors.verify_chain(&refs(&chain), WALL.after(Span::from_mins(40))).unwrap_err();
    assert!(matches!(refused, TrustError::CertificateExpired { place: Place::Authority, .. }), "{refused}");
}

#[test]
fn foreign_chains_are_refused() {
    let world = World::new(1);
    let anchors = world.anchors();
    let stranger = World::named("test", 2).issue(7, &[Role::Control]);
    assert_eq!(code(&anchors, &stranger), "CERTIFICATE_FOREIGN");
    // The same name, another authority: with its certificate and without.
    let twin = World::new(3);
    let mut chain = twin.issue(7, &[Role::Control]);
    assert_eq!(code(&anchors, &chain), "CERTIFICATE_FOREIGN");
    chain.push(twin.authority.certificate().to_vec());
    assert_eq!(code(&anchors, &chain), "CERTIFICATE_FOREIGN");
    // Leaf of one issuer, certificate of another.
    let mixed = [twin.issue(7, &[Role::Node]).remove(0), world.issuer.certificate().to_vec()];
    assert_eq!(code(&anchors, &mixed), "CERTIFICATE_FOREIGN");
    // A true issuer of this cluster cannot speak for another one.
    let other: Name = "test".parse().unwrap();
    let params = draft(&other).leaf(NodeId(7), &[Role::Node].into()).unwrap();
    let leaf = sign(&params, &Certified(key(70).public()), world.issuer.certificate(), &world.issuer_key);
    let chain = [leaf, world.issuer.certificate().to_vec()];
    assert_eq!(code(&anchors, &chain), "CERTIFICATE_FOREIGN");
    let second_opinion = verify_path_to(world.authority.certificate(), &chain[0], &chain[1], WALL);
    assert_eq!(second_opinion, Err(webpki::Error::NameConstraintViolation));
    // Nobody is trusted at all.
    let none = Anchors { authorities: vec![vec![1, 2, 3]], ..anchors };
    assert_eq!(code(&none, &world.issue(7, &[Role::Node])), "CERTIFICATE_FOREIGN");
}

#[test]
fn an_authority_is_replaced_by_overlap() {
    let (old, new) = (World::new(1), World::new(2));
    let both = Anchors {
        authorities: vec![vec![0], old.authority.certificate().to_vec(), new.authority.certificate().to_vec()],
        ..old.anchors()
    };
    let (old_chain, new_chain) = (old.issue(7, &[Role::Node]), new.issue(7, &[Role::Node]));
    assert_eq!([code(&both, &old_chain), code(&both, &new_chain)], ["OK", "OK"]);
    let after = new.anchors();
    assert_eq!([code(&after, &old_chain), code(&after, &new_chain)], ["CERTIFICATE_FOREIGN", "OK"]);
}

#[test]
fn revocations_end_a_certificate_a_node_or_an_issuer() {
    let world = World::new(1);
    let (chain, same_node) = (world.issue(7, &[Role::Node]), world.issue(7, &[Role::Node]));
    let other = world.issue(8, &[Role::Node]);
    let serial = crate::read_identity(&refs(&chain)).unwrap().serial;
    let codes = |anchors: Anchors| [&chain, &same_node, &other].map(|chain| code(&anchors, chain));
    let revoked = "CERTIFICATE_REVOKED";
    let anchors = world.anchors();
    assert_eq!(codes(Anchors { revoked_serials: [serial].into(), ..anchors.clone() }), [revoked, "OK", "OK"]);
    assert_eq!(codes(Anchors { revoked_nodes: [NodeId(7)].into(), ..anchors.clone() }), [revoked, revoked, "OK"]);
    // The node of the issuer is revoked, its issuing key is not: a stolen control node is two revocations.
    assert_eq!(codes(Anchors { revoked_nodes: [NodeId(1)].into(), ..anchors.clone() }), ["OK"; 3]);
    let issuers = [world.issuer.public()].into();
    assert_eq!(codes(Anchors { revoked_issuers: issuers, ..anchors.clone() }), [revoked; 3]);
    let issuer_serial = read::issuer(world.issuer.certificate()).unwrap().serial;
    assert_eq!(codes(Anchors { revoked_serials: [issuer_serial].into(), ..anchors }), [revoked; 3]);
}

#[test]
fn an_issuer_cannot_make_issuers() {
    let world = World::new(1);
    let cluster = world.authority.cluster();
    let mut params = draft(cluster).issuer(NodeId(9), &key(9).public()).unwrap();
    let sub_issuer = sign(&params, &Certified(key(9).public()), world.issuer.certificate(), &world.issuer_key);
    let leaf = draft(cluster).leaf(NodeId(7), &[Role::Control].into()).unwrap();
    let leaf = sign(&leaf, &Certified(key(70).public()), &sub_issuer, &key(9));
    let whole = [leaf.clone(), sub_issuer.clone(), world.issuer.certificate().to_vec()];
    assert_eq!(code(&world.anchors(), &whole), "CERTIFICATE_PATH_TOO_LONG");
    assert_eq!(code(&world.anchors(), &[leaf, sub_issuer]), "CERTIFICATE_FOREIGN");
    // An issuer that the authority allowed more than a path of length 0 is none of ours.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    let (anchors, root, root_key) = open_authority(|_| {});
    for is_ca in [BasicConstraints::Constrained(1), BasicConstraints::Unconstrained] {
        let chain = forged_issuer(&root, &root_key, |params| params.is_ca = IsCa::Ca(is_ca));
        assert_eq!(code(&anchors, &chain), "CERTIFICATE_PATH_TOO_LONG");
    }
}

#[test]
fn a_node_cannot_issue() {
    let world = World::new(1);
    let (node_key, cluster) = (key(9), world.authority.cluster());
    let params = draft(cluster).leaf(NodeId(9), &[Role::Control].into()).unwrap();
    let node = sign(&params, &Certified(node_key.public()), world.issuer.certificate(), &world.issuer_key);
    let leaf = draft(cluster).leaf(NodeId(7), &[Role::Control].into()).unwrap();
    let leaf = sign(&leaf, &Certified(key(70).public()), &node, &node_key);
    let chain = [leaf, node, world.issuer.certificate().to_vec()];
    assert_eq!(code(&world.anchors(), &chain), "CERTIFICATE_PATH_TOO_LONG");
    assert_eq!(code(&world.anchors(), &chain[..2]), "CERTIFICATE_ISSUER_FLAG");
    for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa] {
        let (anchors, root, root_key) = open_authority(|_| {});
        let chain = forged_issuer(&root, &root_key, |params| params.is_ca = is_ca);
        assert_eq!(code(&anchors, &chain), "CERTIFICATE_ISSUER_FLAG");
    }
}

#[test]
fn a_leaf_is_exactly_of_our_form() {
    let world = World::new(1);
    let name = |dns: &str| SanType::DnsName(dns.try_into().unwrap());
    type Change = Box<dyn Fn(&mut CertificateParams)>;
    let add_name = |dns: &'static str| -> Change {
        Box::new(move |params| params.subject_alt_names.push(SanType::DnsName(dns.try_into().unwrap())))
    };
    let cases: Vec<(&str, &str, Change)> = vec![
        ("nothing changed", "OK", Box::new(|_| {})),
        ("two nodes", "CERTIFICATE_MALFORMED", add_name("8.node.prod.postroad.internal")),
        ("the node twice", "CERTIFICATE_MALFORMED", add_name("7.node.prod.postroad.internal")),
        ("a role twice", "CERTIFICATE_MALFORMED", add_name("node.role.prod.postroad.internal")),
        ("an issuer too", "CERTIFICATE_MALFORMED", add_name("7.issuer.prod.postroad.internal")),
        ("two clusters", "CERTIFICATE_MALFORMED", add_name("relay.role.test.postroad.internal")),
        ("an unknown role", "CERTIFICATE_MALFORMED", add_name("root.role.prod.postroad.internal")),
        ("another domain", "CERTIFICATE_MALFORMED", add_name("example.org")),
        (
            "an address",
            "CERTIFICATE_MALFORMED",
            Box::new(|params| {
                params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
            }),
        ),
        ("no name", "CERTIFICATE_MALFORMED", Box::new(|params| params.subject_alt_names.clear())),
        (
            "no role",
            "CERTIFICATE_MALFORMED",
            Box::new(move |params| {
                params.subject_alt_names = vec![name("7.node.prod.postroad.internal")];
            }),
        ),
        (
            "an issuer's flag",
            "CERTIFICATE_ISSUER_FLAG",
            Box::new(|params| {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }),
        ),
        ("no constraints", "CERTIFICATE_MALFORMED", Box::new(|params| params.is_ca = IsCa::NoCa)),
        ("no usage", "CERTIFICATE_USAGE", Box::new(|params| params.extended_key_usages.clear())),
        (
            "for servers alone",
            "CERTIFICATE_USAGE",
            Box::new(|params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }),
        ),
        (
            "for code too",
            "CERTIFICATE_USAGE",
            Box::new(|params| {
                params.extended_key_usages.push(ExtendedKeyUsagePurpose::CodeSigning);
            }),
        ),
        (
            "for anything",
            "CERTIFICATE_USAGE",
            Box::new(|params| {
                params.extended_key_usages.push(ExtendedKeyUsagePurpose::Any);
            }),
        ),
        (
            "signs certificates",
            "CERTIFICATE_USAGE",
            Box::new(|params| {
                params.key_usages.push(KeyUsagePurpose::KeyCertSign);
            }),
        ),
        ("no key usage", "CERTIFICATE_MALFORMED", Box::new(|params| params.key_usages.clear())),
        (
            "a short serial",
            "CERTIFICATE_MALFORMED",
            Box::new(|params| {
                params.serial_number = Some(SerialNumber::from(7_u64));
            }),
        ),
        (
            "ends before it begins",
            "CERTIFICATE_MALFORMED",
            Box::new(|params| {
                params.not_after = params.not_before - HOUR;
            }),
        ),
    ];
    for (what, expected, change) in cases {
        assert_eq!(code(&world.anchors(), &forged_leaf(&world, change)), expected, "{what}");
    }
}

#[test]
fn an_issuer_is_exactly_of_our_form() {
    let (anchors, root, root_key) = open_authority(|_| {});
    let forge = |change: &dyn Fn(&mut CertificateParams)| code(&anchors, &forged_issuer(&root, &root_key, change));
    let confine = |params: &mut CertificateParams, domain: &str| {
        params.name_constraints.as_mut().unwrap().permitted_subtrees = vec![GeneralSubtree::DnsName(domain.to_owned())];
    };
    assert_eq!(forge(&|_| {}), "OK");
    assert_eq!(forge(&|params| params.name_constraints = None), "CERTIFICATE_NAME_CONSTRAINT");
    assert_eq!(forge(&|params| confine(params, "postroad.internal")), "CERTIFICATE_NAME_CONSTRAINT");
    assert_eq!(forge(&|params| confine(params, "test.postroad.internal")), "CERTIFICATE_NAME_CONSTRAINT");
    assert_eq!(forge(&|params| params.key_usages = vec![KeyUsagePurpose::CrlSign]), "CERTIFICATE_USAGE");
    assert_eq!(forge(&|params| params.subject_alt_names.clear()), "CERTIFICATE_MALFORMED");
    // An authority that is not confined to its cluster does not count.
    let (anchors, root, root_key) = open_authority(|params| params.name_constraints = None);
    assert_eq!(code(&anchors, &forged_issuer(&root, &root_key, |_| {})), "CERTIFICATE_FOREIGN");
}

#[test]
fn keys_are_ed25519() {
    struct Elliptic([u8; 32]);
    impl PublicKeyData for Elliptic {
        fn der_bytes(&self) -> &[u8] {
            &self.0
        }
        fn algorithm(&self) -> &'static SignatureAlgorithm {
            &rcgen::PKCS_ECDSA_P256_SHA256
        }
    }
    let world = World::new(1);
    let params = draft(world.authority.cluster()).leaf(NodeId(7), &[Role::Node].into()).unwrap();
    let leaf = sign(&params, &Elliptic([4; 32]), world.issuer.certificate(), &world.issuer_key);
    let refused = world.anchors().verify_chain(&[&leaf, world.issuer.certificate()], WALL).unwrap_err();
    assert!(refused.to_string().contains("not Ed25519"), "{refused}");
}

#[test]
fn a_joiner_trusts_its_fingerprint_alone() {
    let world = World::new(1);
    let (fingerprint, prod): (_, Name) = (world.authority.fingerprint(), "prod".parse().unwrap());
    let mut chain = world.issue(1, &[Role::Control, Role::Relay]);
    let join = |chain: &[Vec<u8>], fingerprint: &Fingerprint, cluster: Option<&Name>| {
        verify_joined(fingerprint, cluster, &refs(chain), WALL).map_err(|error| error.code())
    };
    // TLS leaves the authority out; without it the fingerprint says nothing.
    assert_eq!(join(&chain, &fingerprint, None).unwrap_err(), "FINGERPRINT_MISMATCH");
    chain.push(world.authority.certificate().to_vec());
    let (identity, anchors) = join(&chain, &fingerprint, Some(&prod)).unwrap();
    assert_eq!((identity.get().node, anchors), (NodeId(1), world.anchors()));
    assert!(join(&chain, &fingerprint, None).is_ok());
    assert_eq!(join(&chain, &fingerprint, Some(&"test".parse().unwrap())).unwrap_err(), "CERTIFICATE_FOREIGN");
    let twin = World::new(2);
    assert_eq!(join(&chain, &twin.authority.fingerprint(), None).unwrap_err(), "FINGERPRINT_MISMATCH");
    // The fingerprint of some other certificate of the chain is no authority's.
    assert_eq!(join(&chain, &Fingerprint::of(&chain[0]), None).unwrap_err(), "CERTIFICATE_ISSUER_FLAG");
    assert_eq!(join(&chain, &Fingerprint::of(&chain[1]), None).unwrap_err(), "CERTIFICATE_PATH_TOO_LONG");
    // The right authority beside somebody else's chain.
    let mut mixed = twin.issue(1, &[Role::Control]);
    mixed.push(world.authority.certificate().to_vec());
    assert_eq!(join(&mixed, &fingerprint, None).unwrap_err(), "CERTIFICATE_FOREIGN");
    // A relay cannot pose as a control node.
    let mut relay = world.issue(7, &[Role::Relay]);
    relay.push(world.authority.certificate().to_vec());
    assert_eq!(join(&relay, &fingerprint, None).unwrap_err(), "ROLE_MISSING");
}

#[test]
fn a_snapshot_key_is_bound_to_cluster_and_node() {
    let world = World::new(1);
    let (anchors, public) = (world.anchors(), key(5).public());
    let signature = world.authority.certify_snapshot_key(NodeId(1), &public);
    let verified = anchors.verify_snapshot_key(NodeId(1), &public, &signature).unwrap();
    assert_eq!(verified.get(), &SnapshotKey { node: NodeId(1), public });
    let code = |anchors: &Anchors, node, public: &PublicKey| {
        anchors.verify_snapshot_key(NodeId(node), public, &signature).unwrap_err().code()
    };
    assert_eq!(code(&anchors, 2, &public), "SIGNATURE_INVALID");
    assert_eq!(code(&anchors, 1, &key(6).public()), "SIGNATURE_INVALID");
    assert_eq!(code(&World::new(2).anchors(), 1, &public), "SIGNATURE_INVALID");
    assert_eq!(code(&World::named("test", 1).anchors(), 1, &public), "SIGNATURE_INVALID");
    let revoked = Anchors { revoked_issuers: [public].into(), ..anchors.clone() };
    assert_eq!(code(&revoked, 1, &public), "CERTIFICATE_REVOKED");
    let revoked = Anchors { revoked_nodes: [NodeId(1)].into(), ..anchors };
    assert_eq!(code(&revoked, 1, &public), "CERTIFICATE_REVOKED");
}

#[test]
fn anchors_survive_json() {
    let anchors = Anchors {
        revoked_serials: [Serial([0x42; 16])].into(),
        revoked_nodes: [NodeId(3)].into(),
        revoked_issuers: [key(1).public()].into(),
        ..World::new(1).anchors()
    };
    let text = serde_json::to_string(&anchors).unwrap();
    assert_eq!(serde_json::from_str::<Anchors>(&text).unwrap(), anchors);
}

/// A chain with its authority, made once: proptest asks for it thousands of times.
fn shared_chain() -> &'static (Anchors, Vec<Vec<u8>>) {
    static CHAIN: std::sync::LazyLock<(Anchors, Vec<Vec<u8>>)> = std::sync::LazyLock::new(|| {
        let world = World::new(1);
        let mut chain = world.issue(7, &[Role::Control, Role::Node]);
        chain.push(world.authority.certificate().to_vec());
        (world.anchors(), chain)
    });
    &CHAIN
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_altered_chain_is_trusted(which in 0..3_usize, at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let (anchors, mut chain) = shared_chain().clone();
        let fingerprint = Fingerprint::of(&chain[2]);
        let at = at.index(chain[which].len());
        chain[which][at] ^= flip;
        prop_assert!(anchors.verify_chain(&refs(&chain), WALL).is_err());
        prop_assert!(verify_joined(&fingerprint, None, &refs(&chain), WALL).is_err());
        let _ = crate::read_identity(&refs(&chain));
        let _ = read::authority(&chain[which]);
    }

    #[test]
    fn cut_spliced_and_grown_certificates_never_panic(
        which in 0..3_usize,
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        patch in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let (anchors, mut chain) = shared_chain().clone();
        let (from, to) = (from.index(chain[which].len()), to.index(chain[which].len()));
        let original = chain[which].clone();
        chain[which].splice(from.min(to)..from.max(to), patch);
        let trusted = anchors.verify_chain(&refs(&chain), WALL).is_ok();
        prop_assert_eq!(trusted, chain[which] == original);
        let _ = read::authority(&chain[which]);
        let _ = read::issuer(&chain[which]);
    }

    #[test]
    fn garbage_never_panics(chain in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6)) {
        prop_assert!(shared_chain().0.verify_chain(&refs(&chain), WALL).is_err());
        prop_assert!(crate::read_identity(&refs(&chain)).is_err());
        prop_assert!(verify_joined(&Fingerprint([0; 32]), None, &refs(&chain), WALL).is_err());
    }
}
