//! What a node keeps of itself on its disk, altered.

use postroad_actors::identity::Kept;
use postroad_cluster::wire;

/// The data as a stored identity. Neither its text nor an error shows a key.
pub(crate) fn run(data: &[u8]) {
    match wire::decode::<Kept>(data) {
        Ok(kept) => {
            let again = wire::encode(&kept);
            assert!(wire::decode::<Kept>(&again).is_ok_and(|read| read == kept));
            assert!(!format!("{kept:?}").contains("seed"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
