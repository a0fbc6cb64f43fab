//! What a node's `status` says, as far as the demonstration needs it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A status as its reader needs it; what is not there is empty, as on nodes that know less.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Seen {
    relays: Relays,
    circuits: Vec<Circuit>,
    sessions: Vec<Session>,
    links: Vec<Link>,
    control: Option<Control>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Relays {
    list: Vec<Relay>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Relay {
    name: String,
    state: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Circuit {
    connected: bool,
    relay_name: Option<String>,
    packet_bytes: u64,
    channels: Vec<Channel>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Channel {
    name: String,
    candidate: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Session {
    name: String,
    up: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Link {
    listener: Option<String>,
    registered_at: Vec<String>,
    flows_by_relay: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Control {
    leader: Option<u64>,
    changing: bool,
    members: Vec<Member>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Member {
    votes: bool,
    certified: bool,
}

impl Seen {
    /// The relay that carries the most flows, else the one that carries a circuit.
    pub fn in_use(&self) -> Option<&str> {
        let carried = self.links.iter().flat_map(|link| &link.flows_by_relay).filter(|(relay, _)| !relay.is_empty());
        let busiest = carried.max_by_key(|(_, flows)| **flows).map(|(relay, _)| relay.as_str());
        busiest.or_else(|| self.circuits.iter().find_map(|circuit| circuit.relay_name.as_deref()))
    }

    /// How many flows `relay` carries.
    pub fn flows_of(&self, relay: &str) -> u64 {
        self.links.iter().filter_map(|link| link.flows_by_relay.get(relay)).sum()
    }

    /// How many relays are ready.
    pub fn relays_ready(&self) -> usize {
        self.relays.list.iter().filter(|relay| relay.state == "ready").count()
    }

    /// Whether the session with `relay` stands.
    pub fn reaches(&self, relay: &str) -> bool {
        self.sessions.iter().any(|session| session.name == relay && session.up)
    }

    /// Whether every circuit could go over another relay than its own at once, and there is a circuit.
    pub fn has_spares(&self) -> bool {
        let spare = |circuit: &Circuit| {
            let own = circuit.relay_name.as_deref();
            circuit.connected && circuit.channels.iter().any(|it| it.candidate && own != Some(&it.name))
        };
        !self.circuits.is_empty() && self.circuits.iter().all(spare)
    }

    /// The largest packets of a circuit, in bytes of QUIC.
    pub fn packet_bytes(&self) -> u64 {
        let standing = self.circuits.iter().filter(|circuit| circuit.connected);
        standing.map(|circuit| circuit.packet_bytes).max().unwrap_or_default()
    }

    /// Whether this node listens for a link.
    pub fn listens(&self) -> bool {
        self.links.iter().any(|link| link.listener.as_deref() == Some("open"))
    }

    /// Relays that hold this node's endpoint.
    pub fn registered_at(&self) -> usize {
        self.links.iter().map(|link| link.registered_at.len()).sum()
    }

    /// Whether the control group has a leader.
    pub fn has_leader(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.leader.is_some())
    }

    /// Whether so many control nodes vote, all certified, and no change of them is under way.
    pub fn agrees_with(&self, voters: usize) -> bool {
        let Some(control) = &self.control else { return false };
        let voting = control.members.iter().filter(|member| member.votes && member.certified).count();
        self.has_leader() && !control.changing && voting == voters
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(value: serde_json::Value) -> Seen {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_relay_in_use_carries_the_most_flows() {
        let links =
            json!([{ "flows_by_relay": { "": 90, "fra": 2, "par": 50 }, "name": "unknown keys are passed over" }]);
        let busy = seen(json!({ "links": links, "circuits": [{ "relay_name": "ams" }] }));
        assert_eq!((busy.in_use(), busy.flows_of("par"), busy.flows_of("ams")), (Some("par"), 50, 0));
        assert_eq!(seen(json!({ "circuits": [{ "relay_name": "ams" }] })).in_use(), Some("ams"));
        assert_eq!(seen(json!({})).in_use(), None);
    }

    #[test]
    fn a_spare_is_a_candidate_that_is_not_in_use() {
        let circuit = |connected: bool, channels: &[(&str, bool)]| {
            let channels: Vec<_> = channels.iter().map(|(name, ok)| json!({ "name": name, "candidate": ok })).collect();
            json!({ "connected": connected, "relay_name": "fra", "channels": channels })
        };
        let cases = [
            (json!([]), false),
            (json!([circuit(true, &[("fra", true)])]), false),
            (json!([circuit(true, &[("fra", true), ("par", false)])]), false),
            (json!([circuit(true, &[("fra", false), ("par", true)])]), true),
            (json!([circuit(true, &[("par", true)]), circuit(false, &[("par", true)])]), false),
        ];
        for (circuits, expected) in cases {
            assert_eq!(seen(json!({ "circuits": circuits })).has_spares(), expected, "{circuits}");
        }
    }

    #[test]
    fn control_nodes_agree_once_all_vote_under_a_leader() {
        let member = |votes, certified| json!({ "votes": votes, "certified": certified });
        let control = |leader: Option<u64>, members| json!({ "control": { "leader": leader, "members": members } });
        assert!(seen(control(Some(1), json!([member(true, true), member(true, true)]))).agrees_with(2));
        assert!(!seen(control(Some(1), json!([member(true, true), member(true, false)]))).agrees_with(2));
        assert!(!seen(control(None, json!([member(true, true)]))).agrees_with(1));
        assert!(!seen(json!({ "control": null })).agrees_with(0));
    }
}
