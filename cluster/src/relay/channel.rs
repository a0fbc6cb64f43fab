//! Channels: the ways of packets between two sessions, while a live route joins their nodes.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{AskedFor, Asker, Effect, Held, Relay, absent, admission, too_many};
use crate::{
    behavior::{ReplyId, Turn},
    command::{Refusal, code},
    id::{ChannelToken, CircuitId, NodeId},
    limits::{CHANNEL_WAITERS_MAX, CHANNELS_PER_PAIR_MAX, SESSION_CHANNELS_MAX},
    wire::session::{NodeResponse, RelayRequest},
};

/// Which channel: the pair of nodes and their circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelKey {
    /// The node with the lower number.
    pub low: NodeId,
    /// The node with the higher number.
    pub high: NodeId,
    /// The circuit.
    pub circuit: CircuitId,
}

/// As text where people read: JSON has no other keys, and the console shows the relay's channels by them.
impl Serialize for ChannelKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { low, high, circuit } = self;
        if serializer.is_human_readable() {
            serializer.collect_str(&format_args!("{}-{}-{}", low.0, high.0, circuit.0))
        } else {
            (low, high, circuit).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for ChannelKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (low, high, circuit) = if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            let mut numbers = text.split('-').map(str::parse);
            match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
                (Some(Ok(low)), Some(Ok(high)), Some(Ok(circuit)), None) => (low, high, circuit),
                _ => return Err(D::Error::custom("a channel's key is three numbers: LOW-HIGH-CIRCUIT")),
            }
        } else {
            <(u64, u64, u64)>::deserialize(deserializer)?
        };
        Ok(Self { low: NodeId(low), high: NodeId(high), circuit: CircuitId(circuit) })
    }
}

/// One end of a channel, as the packet switch needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelEnd {
    /// The node.
    pub node: NodeId,
    /// The connection of its session: packets come from its address, and go there.
    pub connection: u64,
    /// The token that the node writes and the switch looks up.
    pub token_out: ChannelToken,
    /// The token that the switch writes into packets for the node.
    pub token_in: ChannelToken,
}

/// A channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// Its ends: who asked for it, then who was offered it.
    pub ends: [ChannelEnd; 2],
    /// The offer that its peer has not answered yet.
    offer: Option<u64>,
    /// Who waits for that.
    waiters: Vec<(NodeId, Asker)>,
}

impl Channel {
    /// Whether its peer has taken it.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.offer.is_none()
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = ReplyId> + '_ {
        self.waiters.iter().map(|(_, asker)| asker.reply)
    }

    fn opened(&self, node: NodeId) -> NodeResponse {
        let end = if self.ends[0].node == node { self.ends[0] } else { self.ends[1] };
        NodeResponse::ChannelOpened { token_out: end.token_out, token_in: end.token_in }
    }
}

impl ChannelKey {
    /// The key of a pair's circuit, whoever of the two asks.
    #[must_use]
    pub fn new(one: NodeId, other: NodeId, circuit: CircuitId) -> Self {
        Self { low: one.min(other), high: one.max(other), circuit }
    }
}

impl Relay {
    pub(super) fn channel_open(
        &mut self,
        turn: Turn,
        asker: Asker,
        key: ChannelKey,
        peer: NodeId,
        draws: [ChannelToken; 4],
        effects: &mut Vec<Effect>,
    ) {
        let node = if key.low == peer { key.high } else { key.low };
        if let Some(known) = self.channels.get_mut(&key) {
            if known.is_open() {
                let opened = known.opened(node);
                return self.reply(asker.reply, opened, effects);
            }
            if known.waiters.len() < CHANNEL_WAITERS_MAX {
                known.waiters.push((node, asker));
                return self.owe(asker);
            }
            let refusal = too_many("this channel is being opened already");
            return self.reply(asker.reply, NodeResponse::Refused(refusal), effects);
        }
        let connection = match self.channel_check(turn, asker, key, peer, &draws) {
            Ok(connection) => connection,
            Err(refusal) => return self.reply(asker.reply, NodeResponse::Refused(refusal), effects),
        };
        let [out, inward, peer_out, peer_in] = draws;
        let ends = [
            ChannelEnd { node, connection: asker.connection, token_out: out, token_in: inward },
            ChannelEnd { node: peer, connection, token_out: peer_out, token_in: peer_in },
        ];
        self.tokens.extend(draws);
        for node in [node, peer] {
            self.channels_of.entry(node).or_default().insert(key);
        }
        // The switch first: the peer may send as soon as it knows its token.
        effects.push(Effect::SwitchOpen { ends });
        let circuit = key.circuit;
        let offer = RelayRequest::ChannelOffer { circuit, peer: node, token_out: peer_out, token_in: peer_in };
        let ask = self.ask(connection, AskedFor::Offer { key }, offer, effects);
        self.channels.insert(key, Channel { ends, offer: Some(ask), waiters: vec![(node, asker)] });
        self.owe(asker);
    }

    /// The connection of the peer, if a channel to it may be opened.
    fn channel_check(
        &self,
        turn: Turn,
        asker: Asker,
        key: ChannelKey,
        peer: NodeId,
        draws: &[ChannelToken; 4],
    ) -> Result<u64, Refusal> {
        let node = if key.low == peer { key.high } else { key.low };
        self.check_room(asker)?;
        if self.is_drained(turn.now) {
            return Err(super::drain::drained());
        }
        if !self.policy.as_ref().is_some_and(|held| held.joins(node, peer)) {
            return Err(admission::mismatch(&format!("no link joins {node} and {peer}")));
        }
        let connection = self.sessions.get(&peer).copied();
        let connection = connection.ok_or_else(|| absent(&format!("{peer} has no session at this relay")))?;
        let pair = ChannelKey { circuit: CircuitId(0), ..key }..=ChannelKey { circuit: CircuitId(u64::MAX), ..key };
        if self.channels.range(pair).count() >= CHANNELS_PER_PAIR_MAX {
            return Err(too_many(&format!("{node} and {peer} have {CHANNELS_PER_PAIR_MAX} channels here")));
        }
        let full = |node: &NodeId| self.channels_of.get(node).map_or(0, BTreeSet::len) >= SESSION_CHANNELS_MAX;
        if let Some(node) = [node, peer].iter().find(|node| full(node)) {
            return Err(too_many(&format!("{node} has {SESSION_CHANNELS_MAX} channels here")));
        }
        let fresh =
            |(index, draw): (usize, &ChannelToken)| !self.tokens.contains(draw) && !draws[..index].contains(draw);
        if draws.iter().enumerate().all(fresh) {
            return Ok(connection);
        }
        Err(Refusal::new(code::CHANNEL_CLOSED, "a token was drawn that is in use", "Try again"))
    }

    pub(super) fn offer_answered(&mut self, key: ChannelKey, refusal: Option<&Refusal>, effects: &mut Vec<Effect>) {
        let Some(channel) = self.channels.get_mut(&key) else { return };
        channel.offer = None;
        let waiters = core::mem::take(&mut channel.waiters);
        let channel = channel.clone();
        if let Some(refusal) = refusal {
            self.channel_forget(key, effects);
            // A peer that did not answer in time may still take the offer and has to hear that there is none.
            let [one, other] = channel.ends;
            if refusal.code == code::PEER_ABSENT {
                let reason = "the offer was not answered in time".to_owned();
                let request = RelayRequest::ChannelClosed { circuit: key.circuit, peer: one.node, reason };
                effects.push(Effect::Tell { connection: other.connection, request });
            }
        } else {
            self.counters.channels_opened += 1;
        }
        for (node, asker) in waiters {
            let response = refusal.cloned().map_or_else(|| channel.opened(node), NodeResponse::Refused);
            self.settle(asker, response, effects);
        }
    }

    /// Closes a channel and tells its ends, but not `knows`, which knows already.
    pub(super) fn channel_close(
        &mut self,
        key: ChannelKey,
        knows: Option<NodeId>,
        reason: &str,
        effects: &mut Vec<Effect>,
    ) {
        let Some(channel) = self.channel_forget(key, effects) else { return };
        if let Some(ask) = channel.offer {
            self.asks.remove(&ask);
        }
        for (_, asker) in channel.waiters {
            let refusal =
                Refusal::new(code::CHANNEL_CLOSED, format!("the channel was closed: {reason}"), "Open it again");
            self.settle(asker, NodeResponse::Refused(refusal), effects);
        }
        let [one, other] = channel.ends;
        for (end, peer) in [(one, other.node), (other, one.node)] {
            // One that is still being opened is refused to who asked for it, which is enough.
            let waits = channel.offer.is_some() && end.node == one.node;
            if knows != Some(end.node) && !waits && self.connections.contains_key(&end.connection) {
                let request = RelayRequest::ChannelClosed { circuit: key.circuit, peer, reason: reason.to_owned() };
                effects.push(Effect::Tell { connection: end.connection, request });
            }
        }
    }

    fn channel_forget(&mut self, key: ChannelKey, effects: &mut Vec<Effect>) -> Option<Channel> {
        let channel = self.channels.remove(&key)?;
        for end in channel.ends {
            self.tokens.remove(&end.token_out);
            self.tokens.remove(&end.token_in);
            if let Some(keys) = self.channels_of.get_mut(&end.node) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.channels_of.remove(&end.node);
                }
            }
        }
        effects.push(Effect::SwitchClose { tokens: channel.ends.map(|end| end.token_out) });
        Some(channel)
    }

    pub(super) fn channels_end(&mut self, node: NodeId, reason: &str, effects: &mut Vec<Effect>) {
        for key in self.channels_of.get(&node).cloned().unwrap_or_default() {
            self.channel_close(key, Some(node), reason, effects);
        }
    }

    /// Closes the channels whose pair no live route joins any more.
    pub(super) fn close_unjoined(&mut self, held: &Held, effects: &mut Vec<Effect>) {
        let gone = self.channels.keys().filter(|key| !held.joins(key.low, key.high)).copied();
        for key in gone.collect::<Vec<_>>() {
            self.channel_close(key, None, "the last link between the two nodes was removed", effects);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_text_where_people_read() {
        let key = ChannelKey { low: NodeId(3), high: NodeId(7), circuit: CircuitId(u64::MAX) };
        let json = serde_json::to_string(&std::collections::BTreeMap::from([(key, 1)])).unwrap();
        assert_eq!(json, format!("{{\"3-7-{}\":1}}", u64::MAX));
        assert_eq!(serde_json::from_str::<std::collections::BTreeMap<ChannelKey, u8>>(&json).unwrap()[&key], 1);
        assert!(serde_json::from_str::<ChannelKey>("\"3-7\"").is_err());
    }
}
