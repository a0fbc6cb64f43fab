//! Signed snapshots and grants: only what was signed passes, whatever is changed in it.

use std::{collections::BTreeMap, sync::OnceLock};

use postroad_cluster::{
    grant::{Grant, Right, SignedGrant},
    id::{Generation, LinkId, NodeId, Version},
    snapshot::{SignedSnapshot, SnapshotHeader},
    time::{Span, WallTime},
    wire,
};
use postroad_trust::{
    Anchors, Authority, PublicKey, SigningKey, content_hash, sign_grant, sign_snapshot, verify_grant, verify_snapshot,
};

use crate::mutation::{Repeating, edited};

/// 2026-01-01 00:00 UTC.
const WALL: WallTime = WallTime(1_767_225_600_000);

struct Good {
    anchors: Anchors,
    key: PublicKey,
    snapshot: SignedSnapshot,
    grant: SignedGrant,
}

fn good() -> &'static Good {
    static GOOD: OnceLock<Good> = OnceLock::new();
    GOOD.get_or_init(|| {
        let cluster: postroad_cluster::id::Name = "harbour".parse().expect("it is a name");
        let authority = Authority::create(&cluster, &Repeating(1), WALL).expect("an authority is made");
        let key = SigningKey::generate(&Repeating(2));
        // That the content is none is found after its hash was.
        let content = b"the content of a snapshot".to_vec();
        let header = SnapshotHeader {
            cluster: cluster.clone(),
            recipient: NodeId(7),
            version: Version(5),
            issued: WALL,
            lease: Span::from_hours(72),
            content_hash: content_hash(&content),
        };
        let certified = authority.certify_snapshot_key(NodeId(1), &key.public());
        let grant = Grant {
            cluster: cluster.clone(),
            link: LinkId(1),
            generation: Generation(1),
            holder: NodeId(7),
            target: NodeId(8),
            right: Right::Open,
            issued: WALL,
            expires: WALL.after(Span::from_hours(96)),
        };
        Good {
            anchors: Anchors::of_authority(cluster, authority.certificate().to_vec()),
            key: key.public(),
            snapshot: sign_snapshot(&key, NodeId(1), certified, &header, Some(content)),
            grant: sign_grant(&key, NodeId(1), &grant),
        }
    })
}

/// The data as edits of an encoded snapshot and of an encoded grant.
pub(crate) fn run(data: &[u8]) {
    let good = good();
    if let Ok(snapshot) = wire::decode::<SignedSnapshot>(&edited(&wire::encode(&good.snapshot), data)) {
        let code = verify_snapshot(&snapshot, &good.anchors, None).err().map(|error| error.code());
        // The content decodes as none, which is found only once signature and hash hold.
        let altered = snapshot != good.snapshot;
        assert!(code.is_some_and(|code| altered || code == "CONTENT_MALFORMED"), "{code:?}");
        assert!(!altered || code != Some("CONTENT_MALFORMED"), "an altered snapshot was believed");
    }
    if let Ok(grant) = wire::decode::<SignedGrant>(&edited(&wire::encode(&good.grant), data)) {
        let keys = BTreeMap::from([(NodeId(1), good.key)]);
        let trusted = |signer: NodeId, key: &PublicKey| keys.get(&signer) == Some(key);
        assert_eq!(verify_grant(&grant, &trusted).is_ok(), grant == good.grant);
    }
}
