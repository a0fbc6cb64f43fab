//! Connection ids and stateless resets that outlive a restart, and the bound on how many resets are sent.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use postroad_cluster::{
    limits::{RESETS_BURST, RESETS_PER_SECOND},
    time::{Clock, Moment, Span},
};
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use quinn_proto::{HashedConnectionIdGenerator, InvalidCid};
use ring::hmac;

/// The key of a purpose, from the node's secret.
fn derive(secret: &[u8; 32], purpose: &[u8]) -> [u8; 32] {
    let mut derived = [0; 32];
    derived.copy_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), purpose).as_ref());
    derived
}

/// The key that stateless resets are made with.
pub(super) fn reset_key(secret: &[u8; 32]) -> Arc<hmac::Key> {
    Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &derive(secret, b"postroad stateless reset")))
}

/// Makes connection ids that a restarted process knows for its own, and bounds its resets by a bucket instead of
/// quinn's interval, which would leave most peers of a restarted relay to their timeouts.
pub(super) fn outlive_restarts(config: &mut EndpointConfig, secret: &[u8; 32], clock: &Arc<dyn Clock>) {
    let derived = derive(secret, b"postroad connection ids");
    let key = derived.iter().take(8).fold(0, |key, byte| key << 8 | u64::from(*byte));
    let clock = Arc::clone(clock);
    config.min_reset_interval(Span::ZERO).cid_generator(move || {
        Box::new(BoundedIds {
            ids: HashedConnectionIdGenerator::from_key(key),
            bucket: Mutex::new(Bucket::full(clock.now())),
            clock: Arc::clone(&clock),
        })
    });
}

/// quinn asks whether an unknown id may be one of ours just before it sends a reset, and nowhere else: a no for want of
/// tokens is the bound.
struct BoundedIds {
    ids: HashedConnectionIdGenerator,
    bucket: Mutex<Bucket>,
    clock: Arc<dyn Clock>,
}

impl ConnectionIdGenerator for BoundedIds {
    fn generate_cid(&mut self) -> ConnectionId {
        self.ids.generate_cid()
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        self.ids.validate(id)?;
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        if bucket.take(self.clock.now()) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        self.ids.cid_len()
    }

    fn cid_lifetime(&self) -> Option<Span> {
        self.ids.cid_lifetime()
    }
}

impl fmt::Debug for BoundedIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoundedIds")
    }
}

/// A bucket of [`RESETS_BURST`] tokens that fills by [`RESETS_PER_SECOND`].
struct Bucket {
    tokens: u64,
    filled: Moment,
}

impl Bucket {
    const fn full(now: Moment) -> Self {
        Self { tokens: RESETS_BURST, filled: now }
    }

    fn take(&mut self, now: Moment) -> bool {
        let interval = 1_000_000_000 / RESETS_PER_SECOND;
        let grown = now.since(self.filled).as_nanos() as u64 / interval;
        self.filled = self.filled.after(Span::from_nanos(grown.saturating_mul(interval)));
        self.tokens = self.tokens.saturating_add(grown).min(RESETS_BURST);
        let taken = self.tokens > 0;
        self.tokens -= u64::from(taken);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_bounded_over_any_second() {
        let mut bucket = Bucket::full(Moment::ZERO);
        let sent = |bucket: &mut Bucket, at_ms: u64| {
            (0..10_000).filter(|_| bucket.take(Moment(at_ms * 1_000_000))).count() as u64
        };
        assert_eq!(sent(&mut bucket, 0), RESETS_BURST);
        assert_eq!(sent(&mut bucket, 0), 0);
        assert_eq!(sent(&mut bucket, 500), RESETS_PER_SECOND / 2);
        assert_eq!(sent(&mut bucket, 1_000), RESETS_PER_SECOND / 2);
        assert_eq!(sent(&mut bucket, 3_600_000), RESETS_BURST);
    }

    #[test]
    fn a_restarted_process_knows_its_ids_and_no_others() {
        let key = |secret: u8| derive(&[secret; 32], b"postroad connection ids");
        assert_eq!(key(1), key(1));
        assert_ne!(key(1), key(2));
        assert_ne!(key(1), derive(&[1; 32], b"postroad stateless reset"));
        let id = HashedConnectionIdGenerator::from_key(7).generate_cid();
        assert!(HashedConnectionIdGenerator::from_key(7).validate(&id).is_ok());
        assert!(HashedConnectionIdGenerator::from_key(8).validate(&id).is_err());
    }
}
