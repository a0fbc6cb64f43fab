//! Relays' words for tunnels, kept until the tunnel's stream comes, or until nobody waits any more.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use postroad_cluster::{
    id::{Generation, LinkId, NodeId, TunnelId},
    limits::{VOUCHED_FRESH, VOUCHED_LIFE, VOUCHERS_MAX, VOUCHERS_OF_A_CONSUMER_MAX},
    time::Moment,
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

/// The words for one consumer's tunnels.
#[derive(Debug, Default)]
struct Words {
    number_of: BTreeMap<Vouched, u64>,
    /// Each with when it came, the oldest first.
    by_number: BTreeMap<u64, (Vouched, Moment)>,
}

impl Words {
    fn put(&mut self, number: u64, now: Moment, vouched: Vouched) {
        if let Some(before) = self.number_of.insert(vouched, number) {
            self.by_number.remove(&before);
        }
        self.by_number.insert(number, (vouched, now));
        let old = |oldest: &(Vouched, Moment)| now.since(oldest.1) >= VOUCHED_LIFE;
        while self.len() > VOUCHERS_OF_A_CONSUMER_MAX || self.by_number.values().next().is_some_and(old) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, (vouched, _))) = self.by_number.pop_first() {
            self.number_of.remove(&vouched);
        }
    }

    fn take(&mut self, vouched: &Vouched) -> bool {
        let number = self.number_of.remove(vouched);
        number.is_some_and(|number| self.by_number.remove(&number).is_some())
    }

    fn len(&self) -> usize {
        self.by_number.len()
    }
}

#[derive(Debug, Default)]
struct Kept {
    of: BTreeMap<NodeId, Words>,
    last: u64,
}

/// The words that have come and were not used yet: the newest [`VOUCHERS_OF_A_CONSUMER_MAX`] of each consumer, and of
/// [`VOUCHERS_MAX`] in all those of whoever has fewest, so that nobody's words make room for a flood of somebody else's.
#[derive(Debug, Default)]
pub struct Vouchers {
    kept: Mutex<Kept>,
    came: Notify,
}

impl Vouchers {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    /// A relay vouches for tunnels.
    pub fn put(&self, now: Moment, tunnels: impl IntoIterator<Item = Vouched>) {
        let mut kept = self.kept();
        for vouched in tunnels {
            kept.last += 1;
            let number = kept.last;
            kept.of.entry(vouched.consumer).or_default().put(number, now, vouched);
        }
        while kept.of.values().map(Words::len).sum::<usize>() > VOUCHERS_MAX {
            if let Some(most) = kept.of.values_mut().max_by_key(|words| words.len()) {
                most.drop_oldest();
            }
        }
        drop(kept);
        self.came.notify_waiters();
    }

    fn take(&self, vouched: &Vouched) -> bool {
        let mut kept = self.kept();
        let Some(words) = kept.of.get_mut(&vouched.consumer) else { return false };
        let taken = words.take(vouched);
        if words.len() == 0 {
            kept.of.remove(&vouched.consumer);
        }
        taken
    }

    /// Whether streams of this consumer may be on their way: a relay has vouched for some lately that have not come.
    pub fn awaits(&self, now: Moment, consumer: NodeId) -> bool {
        let kept = self.kept();
        let newest = kept.of.get(&consumer).and_then(|words| words.by_number.values().next_back());
        newest.is_some_and(|(_, came)| now.since(*came) < VOUCHED_FRESH)
    }

    /// Waits for a relay's word for this tunnel, and uses it up. The caller bounds the wait.
    pub async fn wait(&self, vouched: Vouched) {
        loop {
            let came = self.came.notified();
            tokio::pin!(came);
            came.as_mut().enable();
            if self.take(&vouched) {
                return;
            }
            came.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postroad_cluster::time::Span;

    use super::*;

    fn vouched(consumer: u64, tunnel: u64) -> Vouched {
        Vouched { consumer: NodeId(consumer), tunnel: TunnelId(tunnel), link: LinkId(1), generation: Generation(1) }
    }

    fn after(span: Span) -> Moment {
        Moment::ZERO.after(span)
    }

    #[tokio::test(start_paused = true)]
    async fn a_word_is_good_once_before_or_after_its_stream() {
        let vouchers = Vouchers::default();
        vouchers.put(Moment::ZERO, [vouched(1, 1), vouched(1, 3)]);
        vouchers.wait(vouched(1, 1)).await;
        let again = tokio::time::timeout(Duration::from_secs(1), vouchers.wait(vouched(1, 1))).await;
        assert!(again.is_err());
        tokio::join!(vouchers.wait(vouched(1, 2)), async { vouchers.put(Moment::ZERO, [vouched(1, 2)]) });
        vouchers.wait(vouched(1, 3)).await;
        assert!(vouchers.kept().of.is_empty(), "nothing is left of a consumer without words");
    }

    #[test]
    fn a_consumers_oldest_words_make_room_for_its_newer_ones() {
        let vouchers = Vouchers::default();
        vouchers.put(Moment::ZERO, [vouched(2, 0)]);
        vouchers.put(Moment::ZERO, (0..=VOUCHERS_OF_A_CONSUMER_MAX as u64).map(|tunnel| vouched(1, tunnel)));
        assert!(!vouchers.take(&vouched(1, 0)));
        assert!(vouchers.take(&vouched(1, 1)));
        assert!(vouchers.take(&vouched(2, 0)), "another's are not touched");
    }

    #[test]
    fn of_all_words_those_of_whoever_has_most_make_room() {
        let vouchers = Vouchers::default();
        let flood = VOUCHERS_OF_A_CONSUMER_MAX as u64;
        vouchers.put(Moment::ZERO, [vouched(99, 0)]);
        for consumer in 0..10 {
            vouchers.put(Moment::ZERO, (0..flood).map(|tunnel| vouched(consumer, tunnel)));
        }
        assert_eq!(vouchers.kept().of.values().map(Words::len).sum::<usize>(), VOUCHERS_MAX);
        assert!(vouchers.take(&vouched(99, 0)), "it was the oldest, and its consumer's only one");
    }

    #[test]
    fn words_grow_old() {
        let vouchers = Vouchers::default();
        vouchers.put(Moment::ZERO, [vouched(1, 0)]);
        assert!(vouchers.awaits(Moment::ZERO, NodeId(1)));
        assert!(!vouchers.awaits(Moment::ZERO, NodeId(2)));
        assert!(!vouchers.awaits(after(VOUCHED_FRESH), NodeId(1)), "its stream would have come");
        vouchers.put(after(VOUCHED_LIFE), [vouched(1, 1)]);
        assert!(!vouchers.take(&vouched(1, 0)));
        assert!(vouchers.take(&vouched(1, 1)));
    }
}
