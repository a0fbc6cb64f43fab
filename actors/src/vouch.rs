//! Relays' words for tunnels, kept until the tunnel's stream comes, or until nobody waits any more.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};

use postroad_cluster::{
    id::{Generation, LinkId, NodeId, TunnelId},
    limits::VOUCHERS_MAX,
};
use tokio::sync::Notify;

use crate::directory::lock;

/// A tunnel as a relay vouches for it: whose, on which link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vouched {
    /// The consumer.
    pub consumer: NodeId,
    /// The tunnel, drawn by the consumer.
    pub tunnel: TunnelId,
    /// The link.
    pub link: LinkId,
    /// The generation of the route that the relay knows.
    pub generation: Generation,
}

#[derive(Debug, Default)]
struct Kept {
    relay_of: BTreeMap<Vouched, NodeId>,
    oldest: VecDeque<Vouched>,
}

/// The words that have come and were not used yet: the newest [`VOUCHERS_MAX`].
#[derive(Debug, Default)]
pub struct Vouchers {
    kept: Mutex<Kept>,
    came: Notify,
}

impl Vouchers {
    /// A relay vouches for a tunnel.
    pub fn put(&self, vouched: Vouched, relay: NodeId) {
        let mut kept = lock(&self.kept);
        if kept.relay_of.insert(vouched, relay).is_none() {
            kept.oldest.push_back(vouched);
        }
        while kept.oldest.len() > VOUCHERS_MAX {
            if let Some(old) = kept.oldest.pop_front() {
                kept.relay_of.remove(&old);
            }
        }
        drop(kept);
        self.came.notify_waiters();
    }

    fn take(&self, vouched: &Vouched) -> Option<NodeId> {
        let mut kept = lock(&self.kept);
        let relay = kept.relay_of.remove(vouched)?;
        kept.oldest.retain(|other| other != vouched);
        Some(relay)
    }

    /// Waits for a relay's word for this tunnel, and uses it up. The caller bounds the wait.
    pub async fn wait(&self, vouched: Vouched) -> NodeId {
        loop {
            let came = self.came.notified();
            tokio::pin!(came);
            came.as_mut().enable();
            if let Some(relay) = self.take(&vouched) {
                return relay;
            }
            came.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vouched(tunnel: u64) -> Vouched {
        Vouched { consumer: NodeId(1), tunnel: TunnelId(tunnel), link: LinkId(1), generation: Generation(1) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_word_is_good_once_before_or_after_its_stream() {
        let vouchers = Vouchers::default();
        vouchers.put(vouched(1), NodeId(7));
        assert_eq!(vouchers.wait(vouched(1)).await, NodeId(7));
        let again = tokio::time::timeout(std::time::Duration::from_secs(1), vouchers.wait(vouched(1))).await;
        assert!(again.is_err());
        let (late, ()) = tokio::join!(vouchers.wait(vouched(2)), async { vouchers.put(vouched(2), NodeId(8)) });
        assert_eq!(late, NodeId(8));
    }

    #[test]
    fn the_oldest_words_make_room() {
        let vouchers = Vouchers::default();
        for tunnel in 0..=VOUCHERS_MAX as u64 {
            vouchers.put(vouched(tunnel), NodeId(7));
        }
        assert_eq!(vouchers.take(&vouched(0)), None);
        assert_eq!(vouchers.take(&vouched(1)), Some(NodeId(7)));
    }
}
