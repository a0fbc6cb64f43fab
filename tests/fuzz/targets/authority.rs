//! The sealed file of an authority, as whoever kept it brings it back.

use std::{num::NonZeroU32, sync::OnceLock};

use postroad_cluster::time::WallTime;
use postroad_trust::{Authority, Fingerprint};

use crate::mutation::{Repeating, edited};

/// 2026-01-01 00:00 UTC.
const WALL: WallTime = WallTime(1_767_225_600_000);

fn good() -> &'static (Vec<u8>, Fingerprint) {
    static GOOD: OnceLock<(Vec<u8>, Fingerprint)> = OnceLock::new();
    GOOD.get_or_init(|| {
        let cluster = "harbour".parse().expect("it is a name");
        let authority = Authority::create(&cluster, &Repeating(1), WALL).expect("an authority is made");
        (authority.seal("four random words", NonZeroU32::MIN, &Repeating(2)), authority.fingerprint())
    })
}

/// The data as a file, and as edits of a good one. Whatever opens holds the authority that was
/// sealed: blanks and what stands around it may differ.
pub(crate) fn run(data: &[u8]) {
    let (good, fingerprint) = good();
    let near = edited(good, data);
    for file in [data, &near] {
        match Authority::unseal(file, "four random words") {
            Ok(authority) => {
                assert_eq!((authority.cluster().as_str(), authority.fingerprint()), ("harbour", *fingerprint));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
