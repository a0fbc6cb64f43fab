//! Join tokens as people paste them, and the proofs that joiners send.

use postroad_trust::{JoinSecret, PublicKey};

use crate::mutation::{Repeating, edited};

/// Reads the data as a token, and as edits of a good one; what is read shows itself as it was written.
pub(crate) fn run(data: &[u8]) {
    let good = JoinSecret::generate(&Repeating(7));
    let text = String::from_utf8_lossy(data).into_owned();
    let near = String::from_utf8_lossy(&edited(good.reveal().as_bytes(), data)).into_owned();
    for text in [text, near] {
        match JoinSecret::parse(&text) {
            Ok(secret) => assert_eq!(secret.reveal(), text.trim().to_ascii_lowercase()),
            Err(error) => {
                assert!(!error.to_string().contains(&good.reveal()), "an error repeats the secret");
            }
        }
    }
    let (exporter, public) = ([3; 32], PublicKey([4; 32]));
    let proof = good.proof(&exporter, &public);
    let tried = edited(&proof, data);
    assert_eq!(good.verifier().check(&exporter, &public, &tried).is_ok(), tried == proof);
}
