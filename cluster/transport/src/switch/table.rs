//! Sessions and channels of a switch: who may send with which token, and where it goes.

use std::{collections::BTreeMap, net::SocketAddr};

use postroad_cluster::{
    id::Challenge,
    limits::{
        CHALLENGE_INTERVAL, CHALLENGE_WAIT, CHANNEL_BURST_BYTES, CHANNEL_BYTES_PER_SECOND, SESSION_CHANNELS_MAX,
        SWITCH_LINGER,
    },
    time::Moment,
};

use super::{OpenChannel, OpenError, SessionCounters, SwitchCounters, SwitchDrops, SwitchSession};
use crate::address::{canonical, for_family};

/// A token bucket in bytes.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    bytes: u64,
    filled: Moment,
}

impl Bucket {
    const fn new(now: Moment) -> Self {
        Self { bytes: CHANNEL_BURST_BYTES, filled: now }
    }

    fn refill(&mut self, now: Moment) {
        let earned = now.since(self.filled).as_nanos() * u128::from(CHANNEL_BYTES_PER_SECOND) / 1_000_000_000;
        if earned > 0 {
            self.bytes = CHANNEL_BURST_BYTES.min(self.bytes.saturating_add(earned.min(u128::from(u64::MAX)) as u64));
            self.filled = now;
        }
    }
}

/// An address that was challenged.
#[derive(Clone, Copy, Debug)]
struct Unproven {
    address: SocketAddr,
    challenge: Challenge,
    sent: Moment,
}

#[derive(Debug)]
struct Session {
    /// Where to send, in the form of the socket's family.
    destination: SocketAddr,
    /// Where packets come from, in canonical form.
    source: SocketAddr,
    /// The address before the last move, and until when it is valid.
    previous: Option<(SocketAddr, Moment)>,
    /// Where it was heard from lately and has not proven to be.
    unproven: Option<Unproven>,
    ends: Moment,
    bucket: Bucket,
    channels: usize,
    counters: SessionCounters,
}

#[derive(Debug)]
struct Route {
    channel: OpenChannel,
    bucket: Bucket,
    muted: bool,
}

/// Where packets of one token go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    pub(super) destination: SocketAddr,
    pub(super) token_out: u64,
}

/// The table of a switch.
#[derive(Debug)]
pub(super) struct Table {
    ipv6: bool,
    sessions: BTreeMap<SwitchSession, Session>,
    routes: BTreeMap<u64, Route>,
    pub(super) drops: SwitchDrops,
}

impl Table {
    pub(super) const fn new(ipv6: bool) -> Self {
        Self {
            ipv6,
            sessions: BTreeMap::new(),
            routes: BTreeMap::new(),
            drops: SwitchDrops {
                unknown_token: 0,
                wrong_source: 0,
                malformed: 0,
                over_rate: 0,
                muted: 0,
                socket_full: 0,
                socket_error: 0,
                endpoint_full: 0,
            },
        }
    }

    pub(super) fn session_address(&mut self, session: SwitchSession, address: SocketAddr, now: Moment) {
        let (source, destination) = (canonical(address), for_family(address, self.ipv6));
        match self.sessions.get_mut(&session) {
            Some(session) if session.source == source => {}
            Some(session) => {
                session.unproven = None;
                session.previous = Some((session.source, now.after(SWITCH_LINGER)));
                session.source = source;
                session.destination = destination;
            }
            None => {
                let session_new = Session {
                    destination,
                    source,
                    previous: None,
                    unproven: None,
                    ends: Moment::NEVER,
                    bucket: Bucket::new(now),
                    channels: 0,
                    counters: SessionCounters::default(),
                };
                self.sessions.insert(session, session_new);
            }
        }
    }

    /// Whether a challenge is to go to a session's new address, and in which form of the socket's family.
    pub(super) fn session_seen(
        &mut self,
        session: SwitchSession,
        address: SocketAddr,
        challenge: Challenge,
        now: Moment,
    ) -> Option<(SocketAddr, Challenge)> {
        let session = self.sessions.get_mut(&session)?;
        let address = canonical(address);
        if session.source == address {
            session.unproven = None;
            return None;
        }
        // Whoever jumps from address to address is followed no faster than one who stays.
        if session.unproven.is_some_and(|unproven| now.since(unproven.sent) < CHALLENGE_INTERVAL) {
            return None;
        }
        session.unproven = Some(Unproven { address, challenge, sent: now });
        Some((for_family(address, self.ipv6), challenge))
    }

    pub(super) fn session_proved(&mut self, session: SwitchSession, challenge: Challenge, now: Moment) -> bool {
        let unproven = self.sessions.get_mut(&session).and_then(|session| {
            let fits = |it: &Unproven| it.challenge == challenge && now.since(it.sent) < CHALLENGE_WAIT;
            session.unproven.filter(fits)
        });
        if let Some(Unproven { address, .. }) = unproven {
            self.session_address(session, address, now);
        }
        unproven.is_some()
    }

    pub(super) fn session_replaced(&mut self, session: SwitchSession, now: Moment) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.ends = session.ends.min(now.after(SWITCH_LINGER));
        }
        self.purge(now);
    }

    pub(super) fn session_closed(&mut self, session: SwitchSession) {
        self.sessions.remove(&session);
        self.forget_routes(|gone| gone == session);
    }

    /// Removes what has outlived its linger.
    fn purge(&mut self, now: Moment) {
        let before = self.sessions.len();
        self.sessions.retain(|_, session| session.ends > now);
        if self.sessions.len() < before {
            let alive: Vec<SwitchSession> = self.sessions.keys().copied().collect();
            self.forget_routes(|session| alive.binary_search(&session).is_err());
        }
    }

    fn forget_routes(&mut self, gone: impl Fn(SwitchSession) -> bool) {
        let sessions = &mut self.sessions;
        self.routes.retain(|_, route| {
            let keep = !gone(route.channel.from) && !gone(route.channel.to);
            if !keep && let Some(session) = sessions.get_mut(&route.channel.from) {
                session.channels -= 1;
            }
            keep
        });
    }

    pub(super) fn open(&mut self, channel: OpenChannel, now: Moment) -> Result<(), OpenError> {
        self.purge(now);
        if self.routes.contains_key(&channel.token) {
            return Err(OpenError::TokenTaken);
        }
        if !self.sessions.contains_key(&channel.to) {
            return Err(OpenError::SessionUnknown);
        }
        let from = self.sessions.get_mut(&channel.from).ok_or(OpenError::SessionUnknown)?;
        if from.channels >= SESSION_CHANNELS_MAX {
            return Err(OpenError::TooManyChannels);
        }
        from.channels += 1;
        self.routes.insert(channel.token, Route { channel, bucket: Bucket::new(now), muted: false });
        Ok(())
    }

    pub(super) fn close(&mut self, token: u64) -> bool {
        let Some(route) = self.routes.remove(&token) else { return false };
        if let Some(session) = self.sessions.get_mut(&route.channel.from) {
            session.channels -= 1;
        }
        true
    }

    pub(super) fn mute(&mut self, token: u64, muted: bool) -> bool {
        self.routes.get_mut(&token).map(|route| route.muted = muted).is_some()
    }

    /// Whether `packets` with `token` from `source` may pass, and where they go. Counts them either way.
    pub(super) fn admit(
        &mut self,
        token: u64,
        source: SocketAddr,
        packets: usize,
        bytes: usize,
        now: Moment,
    ) -> Option<Admitted> {
        let (packets, bytes) = (packets as u64, bytes as u64);
        let Some(route) = self.routes.get_mut(&token) else {
            self.drops.unknown_token += packets;
            return None;
        };
        let OpenChannel { from, to, token_out, .. } = route.channel;
        let Some(sender) = self.sessions.get_mut(&from).filter(|session| session.ends > now) else {
            self.drops.unknown_token += packets;
            return None;
        };
        let source = canonical(source);
        let previous = sender.previous.is_some_and(|(previous, until)| previous == source && now < until);
        if sender.source != source && !previous {
            self.drops.wrong_source += packets;
            return None;
        }
        if route.muted {
            self.drops.muted += packets;
            return None;
        }
        route.bucket.refill(now);
        sender.bucket.refill(now);
        if route.bucket.bytes < bytes || sender.bucket.bytes < bytes {
            self.drops.over_rate += packets;
            return None;
        }
        route.bucket.bytes -= bytes;
        sender.bucket.bytes -= bytes;
        sender.counters.packets_in += packets;
        sender.counters.bytes_in += bytes;
        let receiver = self.sessions.get_mut(&to).filter(|session| session.ends > now)?;
        receiver.counters.packets_out += packets;
        receiver.counters.bytes_out += bytes;
        Some(Admitted { destination: receiver.destination, token_out })
    }

    pub(super) fn counters(&self) -> SwitchCounters {
        SwitchCounters {
            channels: self.routes.len() as u64,
            drops: self.drops,
            sessions: self.sessions.iter().map(|(session, it)| (*session, it.counters)).collect(),
            ..SwitchCounters::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use postroad_cluster::time::Span;

    use super::*;

    const A: SwitchSession = SwitchSession(1);
    const B: SwitchSession = SwitchSession(2);

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn at(ms: u64) -> Moment {
        Moment::ZERO.after(Span::from_millis(ms))
    }

    fn table() -> Table {
        let mut table = Table::new(false);
        table.session_address(A, address(1), at(0));
        table.session_address(B, address(2), at(0));
        table.open(OpenChannel { token: 7, from: A, token_out: 8, to: B }, at(0)).unwrap();
        table
    }

    fn passes(table: &mut Table, token: u64, source: SocketAddr, now: Moment) -> bool {
        table.admit(token, source, 1, 100, now).is_some()
    }

    #[test]
    fn tokens_belong_to_a_session_and_its_address() {
        let mut table = table();
        let admitted = table.admit(7, address(1), 2, 200, at(1)).unwrap();
        assert_eq!((admitted.destination, admitted.token_out), (address(2), 8));
        assert!(!passes(&mut table, 9, address(1), at(1)));
        assert!(!passes(&mut table, 7, address(3), at(1)), "a stolen token from elsewhere");
        assert!(!passes(&mut table, 8, address(2), at(1)), "one direction is no other");
        assert_eq!((table.drops.unknown_token, table.drops.wrong_source), (2, 1));
        let counters = table.counters();
        assert_eq!((counters.sessions[&A].packets_in, counters.sessions[&B].bytes_out), (2, 200));
    }

    #[test]
    fn the_last_address_stays_valid_for_five_seconds() {
        let mut table = table();
        table.session_address(A, address(9), at(1_000));
        assert!(passes(&mut table, 7, address(9), at(1_001)));
        assert!(passes(&mut table, 7, address(1), at(5_999)));
        assert!(!passes(&mut table, 7, address(1), at(6_000)));
    }

    #[test]
    fn a_new_address_is_believed_once_its_challenge_was_named() {
        let mut table = table();
        let (here, there, else_where) = (address(1), address(9), address(8));
        assert_eq!(table.session_seen(A, here, Challenge(1), at(0)), None, "nothing new");
        assert_eq!(table.session_seen(A, there, Challenge(2), at(10)), Some((there, Challenge(2))));
        assert_eq!(table.session_seen(A, else_where, Challenge(3), at(200)), None, "too soon for another");
        assert!(!table.session_proved(A, Challenge(3), at(200)), "that one was never sent");
        assert!(!table.session_proved(B, Challenge(2), at(200)), "another session's");
        assert!(!passes(&mut table, 7, there, at(200)) && passes(&mut table, 7, here, at(200)), "not believed yet");
        assert!(table.session_proved(A, Challenge(2), at(200)));
        assert!(!table.session_proved(A, Challenge(2), at(200)), "once");
        assert!(passes(&mut table, 7, there, at(201)) && passes(&mut table, 7, here, at(5_199)));
        // The peer's packets go there from now on.
        table.open(OpenChannel { token: 8, from: B, token_out: 7, to: A }, at(202)).unwrap();
        assert_eq!(table.admit(8, address(2), 1, 100, at(203)).unwrap().destination, there);
        // A challenge has an end, and seeing the old address again takes it back.
        assert!(table.session_seen(A, else_where, Challenge(4), at(1_000)).is_some());
        assert!(!table.session_proved(A, Challenge(4), at(6_000)));
        assert!(table.session_seen(A, else_where, Challenge(5), at(7_000)).is_some());
        assert_eq!(table.session_seen(A, there, Challenge(6), at(7_001)), None);
        assert!(!table.session_proved(A, Challenge(5), at(7_002)));
    }

    #[test]
    fn a_replaced_session_lingers_and_a_closed_one_does_not() {
        let mut table = table();
        table.session_replaced(A, at(0));
        assert!(passes(&mut table, 7, address(1), at(4_999)));
        assert!(!passes(&mut table, 7, address(1), at(5_000)));
        let mut table = self::table();
        table.session_closed(B);
        assert!(!passes(&mut table, 7, address(1), at(1)));
        assert_eq!(table.counters().channels, 0);
    }

    #[test]
    fn bad_opens_change_nothing() {
        let mut table = table();
        let again = OpenChannel { token: 7, from: B, token_out: 1, to: A };
        assert_eq!(table.open(again, at(1)), Err(OpenError::TokenTaken));
        let nobody = OpenChannel { token: 9, from: A, token_out: 1, to: SwitchSession(5) };
        assert_eq!(table.open(nobody, at(1)), Err(OpenError::SessionUnknown));
        for token in 100..100 + SESSION_CHANNELS_MAX as u64 - 1 {
            table.open(OpenChannel { token, from: A, token_out: 1, to: B }, at(1)).unwrap();
        }
        let one_more = OpenChannel { token: 1, from: A, token_out: 1, to: B };
        assert_eq!(table.open(one_more, at(1)), Err(OpenError::TooManyChannels));
        assert!(table.close(100) && !table.close(100));
        assert_eq!(table.open(one_more, at(1)), Ok(()));
    }

    #[test]
    fn rates_and_mutes_hold() {
        let mut table = table();
        let burst = CHANNEL_BURST_BYTES as usize;
        assert!(table.admit(7, address(1), 1, burst, at(0)).is_some());
        assert!(table.admit(7, address(1), 1, 1_000, at(0)).is_none());
        assert!(table.admit(7, address(1), 1, 1_000, at(1)).is_some());
        assert!(table.mute(7, true));
        assert!(!passes(&mut table, 7, address(1), at(50)));
        assert_eq!((table.drops.over_rate, table.drops.muted), (1, 1));
    }
}
