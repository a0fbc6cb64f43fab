//! Tunnels that a relay has admitted ahead of need: when to ask for a lot of them, how many, and how long they are good.
//!
//! A flow that opens asks its circuit's relay for one tunnel. Where flows open one after the other, the consumer asks for
//! about as many tunnels as will be opened while they are good, so that most flows of a busy link open without a word to
//! the relay. A lot is good for [`AHEAD_LIFE`]: so long at most do new flows open over a relay that would refuse them by now.
//! Whether the route still holds does not rest on it: both ends look at each opening (RP-35).

use std::collections::{BTreeMap, VecDeque};

use crate::{
    id::{Generation, LinkId, NodeId, TunnelId},
    limits::{AHEAD_LIFE, AHEAD_LOT_MAX, AHEAD_MAX},
    time::Moment,
};

/// What a tunnel is admitted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via {
    /// The relay.
    pub relay: NodeId,
    /// The link.
    pub link: LinkId,
    /// The generation of its route.
    pub generation: Generation,
}

/// A lot to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// How many tunnels.
    pub tunnels: usize,
    /// Until when they are good, counted from the asking.
    pub until: Moment,
}

/// What a flow gets that opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// A tunnel that its relay has admitted already; without one the flow asks for its own.
    pub tunnel: Option<TunnelId>,
    /// A lot to ask for now, so that later flows find one.
    pub order: Option<Order>,
}

/// The tunnels of one circuit that were admitted ahead.
#[derive(Clone, Debug, Default)]
pub struct Lots(BTreeMap<LinkId, Lot>);

/// Those of one link.
#[derive(Clone, Debug)]
struct Lot {
    via: Via,
    /// Each with its end, the one that ends first in front.
    tunnels: VecDeque<(TunnelId, Moment)>,
    /// Flows since the last order, none of them long after the one before.
    opened: usize,
    last: Moment,
    /// When the last order was made, or when the first flow came.
    since: Moment,
    /// How many were ordered last.
    ordered: usize,
    /// No order before then: one is under way, or was refused.
    rests_until: Moment,
}

impl Lot {
    const fn new(via: Via, now: Moment) -> Self {
        Self { via, tunnels: VecDeque::new(), opened: 0, last: now, since: now, ordered: 0, rests_until: Moment::ZERO }
    }

    fn is_busy(&self, now: Moment) -> bool {
        now.since(self.last) < AHEAD_LIFE
    }

    /// What will be opened soon: more than since the last order if that was soon, less if it was long ago, since what is
    /// left when a lot grows old was asked for in vain.
    fn expects(&self, now: Moment) -> usize {
        match now.since(self.since) {
            soon if soon < AHEAD_LIFE / 3 => 2 * self.opened,
            late if late > AHEAD_LIFE * 2 / 3 => self.opened / 2,
            _ => self.opened,
        }
    }

    /// The tunnels that it has, and those that are under way.
    fn holds(&self, now: Moment) -> usize {
        self.tunnels.len() + if self.rests_until > now { self.ordered } else { 0 }
    }
}

impl Lots {
    /// A flow opens.
    pub fn take(&mut self, now: Moment, via: Via) -> Taken {
        let lot = self.0.entry(via.link).or_insert_with(|| Lot::new(via, now));
        if lot.via != via || !lot.is_busy(now) {
            *lot = Lot::new(via, now);
        }
        lot.tunnels.retain(|(_, until)| *until > now);
        let tunnel = lot.tunnels.pop_front().map(|(tunnel, _)| tunnel);
        (lot.opened, lot.last) = (lot.opened + 1, now);
        Taken { tunnel, order: self.order(now, via.link) }
    }

    /// What to ask for: nothing before the second flow, and nothing while half of the last lot is left.
    fn order(&mut self, now: Moment, link: LinkId) -> Option<Order> {
        let room = AHEAD_MAX.saturating_sub(self.0.values().map(|lot| lot.holds(now)).sum());
        let lot = self.0.get_mut(&link)?;
        let tunnels = lot.expects(now).min(AHEAD_LOT_MAX).min(room);
        if lot.opened < 2 || tunnels == 0 || lot.rests_until > now || lot.tunnels.len() > lot.ordered / 2 {
            return None;
        }
        let until = now.after(AHEAD_LIFE);
        (lot.opened, lot.since, lot.ordered, lot.rests_until) = (0, now, tunnels, until);
        // Whoever was not used for so long has nothing left that is good.
        self.0.retain(|_, lot| lot.is_busy(now));
        Some(Order { tunnels, until })
    }

    /// A lot was admitted.
    pub fn admitted(&mut self, via: Via, tunnels: impl IntoIterator<Item = TunnelId>, until: Moment) {
        // One whose route or relay has changed meanwhile is of no use.
        if let Some(lot) = self.0.get_mut(&via.link).filter(|lot| lot.via == via) {
            lot.tunnels.extend(tunnels.into_iter().map(|tunnel| (tunnel, until)));
            lot.rests_until = Moment::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    const VIA: Via = Via { relay: NodeId(7), link: LinkId(1), generation: Generation(1) };

    fn at(ms: u64) -> Moment {
        Moment::ZERO.after(Span::from_millis(ms))
    }

    fn tunnels(numbers: std::ops::Range<u64>) -> impl Iterator<Item = TunnelId> {
        numbers.map(TunnelId)
    }

    fn asks(order: Option<Order>) -> Taken {
        Taken { tunnel: None, order }
    }

    /// Two flows, of which the second has ordered a lot.
    fn busy() -> Lots {
        let mut lots = Lots::default();
        assert_eq!(lots.take(at(0), VIA), asks(None));
        assert_eq!(lots.take(at(10), VIA), asks(Some(Order { tunnels: 4, until: at(1_010) })));
        lots
    }

    #[test]
    fn a_lot_is_asked_for_before_the_last_one_is_used_up() {
        let mut lots = busy();
        assert_eq!(lots.take(at(20), VIA), asks(None), "an order is under way");
        lots.admitted(VIA, tunnels(0..4), at(1_010));
        let taken: Vec<Taken> = (0..4).map(|flow| lots.take(at(30 + flow), VIA)).collect();
        let got: Vec<Option<TunnelId>> = taken.iter().map(|taken| taken.tunnel).collect();
        assert_eq!(got, (0..4).map(|number| Some(TunnelId(number))).collect::<Vec<_>>());
        let orders: Vec<Option<usize>> = taken.iter().map(|taken| taken.order.map(|order| order.tunnels)).collect();
        assert_eq!(orders, [None, Some(6), None, None], "half of it is left");
        assert_eq!(lots.take(at(40), VIA).tunnel, None, "one asks for itself rather than wait for a lot");
    }

    #[test]
    fn lots_and_what_a_circuit_keeps_are_bounded() {
        let mut lots = Lots::default();
        let mut kept = 0;
        for link in 0..1_000 {
            let via = Via { link: LinkId(link), ..VIA };
            for _ in 0..100 {
                let taken = lots.take(at(0), via);
                if let Some(order) = taken.order {
                    assert!(order.tunnels <= AHEAD_LOT_MAX, "{order:?}");
                    lots.admitted(via, tunnels(0..order.tunnels as u64), order.until);
                }
            }
            kept = lots.0.values().map(|lot| lot.tunnels.len()).sum();
            assert!(kept <= AHEAD_MAX, "{kept}");
        }
        assert!(kept > 0, "and something is kept");
        lots.take(at(5_000), VIA);
        lots.take(at(5_000), VIA);
        assert_eq!(lots.0.len(), 1, "links that nobody uses are forgotten");
    }

    // RP-20, RP-40
    #[test]
    fn what_was_admitted_ahead_is_good_for_a_second_and_by_its_own_relay_and_route_only() {
        let mut lots = busy();
        lots.admitted(VIA, tunnels(0..4), at(1_010));
        assert_eq!(lots.take(at(1_009), VIA).tunnel, Some(TunnelId(0)));
        assert_eq!(lots.take(at(1_010), VIA).tunnel, None, "too old, though the link is busy");
        for other in [Via { relay: NodeId(8), ..VIA }, Via { generation: Generation(2), ..VIA }] {
            let mut lots = busy();
            lots.admitted(other, tunnels(0..4), at(1_010));
            assert_eq!(lots.take(at(20), VIA).tunnel, None, "another was asked");
            lots.admitted(VIA, tunnels(0..4), at(1_010));
            assert_eq!(lots.take(at(30), other), asks(None), "it begins anew");
            assert_eq!(lots.take(at(40), VIA).tunnel, None);
        }
    }

    #[test]
    fn after_a_refusal_nothing_is_asked_ahead_for_a_second() {
        let mut lots = busy();
        let orders = (1..11).filter(|flow| lots.take(at(10 + 100 * flow), VIA).order.is_some());
        assert_eq!(orders.collect::<Vec<_>>(), [10]);
    }

    // A lot lasts for about as long as it is good, however fast flows open.
    #[test]
    fn little_is_asked_for_in_vain() {
        for pause_ms in [1, 3, 10, 30, 100, 200, 400, 600, 900] {
            let (mut lots, mut ordered, mut used) = (Lots::default(), 0, 0);
            for flow in 0..2_000 {
                let now = at(flow * pause_ms);
                let taken = lots.take(now, VIA);
                used += usize::from(taken.tunnel.is_some());
                if let Some(order) = taken.order {
                    ordered += order.tunnels;
                    lots.admitted(VIA, tunnels(0..order.tunnels as u64), order.until);
                }
            }
            let vain = ordered - used;
            assert!(vain * 4 <= 2_000, "{vain} in vain, {used} used at {pause_ms} ms");
            assert!(pause_ms > 200 || used > 1_500, "{used} used at {pause_ms} ms");
        }
    }

    #[test]
    fn a_quiet_link_asks_for_nothing_ahead() {
        let mut lots = Lots::default();
        for flow in 0..20 {
            assert_eq!(lots.take(at(flow * 1_000), VIA), asks(None));
        }
    }
}
