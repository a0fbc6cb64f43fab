//! Links: made, led elsewhere and removed.

use super::{
    Change, LinkRecord, State,
    address::{host_and_port, listen_address, listens_clash},
};
use crate::{
    command::{LinkSpec, Outcome, Refusal, code},
    id::{Generation, LinkId, Name, NodeId, Role, Version},
    limits::{LINK_CONSUMERS_MAX, LINKS_MAX, SPREAD_MAX},
    revocation::Revocation,
    time::WallTime,
};

impl State {
    pub(super) fn link_add(&mut self, now: WallTime, name: Name, spec: LinkSpec) -> Result<Change, Refusal> {
        if let Some((link, known)) = self.link_named(&name) {
            // Whoever lost the answer and asks again gets it again.
            if known.spec == spec {
                return Ok(Change::None(Some(Outcome::LinkAdded { link, generation: known.generation })));
            }
            return Err(Refusal::new(
                code::NAME_TAKEN,
                format!("there is a link {name} already"),
                format!("Choose another name, or look at that one: postroad link show {name}"),
            ));
        }
        self.check_room(&spec)?;
        check_spread(spec.spread)?;
        self.check_target(&spec)?;
        for (consumer, listen) in &spec.consumers {
            self.check_consumer(*consumer, listen, spec.target)?;
        }
        let link = LinkId(self.last_link.0 + 1);
        let generation = Generation(1);
        let what = format!("link {name} made to {}", spec.target_address);
        self.last_link = link;
        self.links.insert(link, LinkRecord { name, spec, generation, made: now });
        Ok(Change::Made { what: Some(what), outcome: Some(Outcome::LinkAdded { link, generation }) })
    }

    fn check_room(&self, spec: &LinkSpec) -> Result<(), Refusal> {
        if spec.consumers.is_empty() {
            return Err(Refusal::new(
                code::LINK_INVALID,
                "the link has no consumer, so nobody could use it",
                "Name at least one: postroad link add NAME --from NODE=127.0.0.1:5432 --to NODE=HOST:PORT",
            ));
        }
        let consumers: usize = self.links.values().map(|link| link.spec.consumers.len()).sum();
        if self.links.len() >= LINKS_MAX || consumers + spec.consumers.len() > LINK_CONSUMERS_MAX {
            return Err(Refusal::new(
                code::TOO_MANY,
                format!("a cluster has at most {LINKS_MAX} links with {LINK_CONSUMERS_MAX} consumers in all"),
                "Remove what is not needed: postroad link list, postroad link remove",
            ));
        }
        Ok(())
    }

    fn check_target(&self, spec: &LinkSpec) -> Result<(), Refusal> {
        let target = self.node_with(spec.target, Role::Node)?;
        host_and_port("the target address", &spec.target_address)?;
        if spec.consumers.contains_key(&spec.target) {
            return Err(Refusal::new(
                code::LINK_INVALID,
                format!("{} is both consumer and target, but a circuit joins two nodes", target.name),
                "On the target's own host, connect to the target address directly",
            ));
        }
        Ok(())
    }

    fn check_consumer(&self, consumer: NodeId, listen: &str, target: NodeId) -> Result<(), Refusal> {
        debug_assert_ne!(consumer, target, "check_target has refused this");
        let name = &self.node_with(consumer, Role::Node)?.name;
        let address = listen_address(listen)?;
        for link in self.links.values() {
            let taken = link.spec.consumers.get(&consumer).and_then(|other| listen_address(other).ok());
            if taken.is_some_and(|taken| listens_clash(taken, address)) {
                return Err(Refusal::new(
                    code::LISTEN_TAKEN,
                    format!("{name} listens on {listen} for the link {} already", link.name),
                    "Choose another address or port",
                ));
            }
        }
        Ok(())
    }

    // RP-35: a new generation revokes the old route on every relay.
    pub(super) fn link_retarget(
        &mut self,
        now: WallTime,
        version: Version,
        link: LinkId,
        target_address: String,
    ) -> Result<Change, Refusal> {
        host_and_port("the target address", &target_address)?;
        let record = self.links.get_mut(&link).ok_or_else(|| unknown(link))?;
        if record.spec.target_address == target_address {
            return Ok(Change::None(None));
        }
        record.generation = record.generation.next();
        let what = format!("link {} leads to {target_address} from {} on", record.name, record.generation);
        record.spec.target_address = target_address;
        let below = record.generation;
        self.revocations.revoke(link, Revocation { below, version, at: now });
        Ok(Change::made(what))
    }

    /// Open flows go on where they are: circuits that are one too many close once they are empty.
    pub(super) fn link_spread(&mut self, link: LinkId, spread: u8) -> Result<Change, Refusal> {
        check_spread(spread)?;
        let record = self.links.get_mut(&link).ok_or_else(|| unknown(link))?;
        if record.spec.spread == spread {
            return Ok(Change::None(None));
        }
        record.spec.spread = spread;
        Ok(Change::made(format!("new connections of link {} are spread over {}", record.name, relays(spread))))
    }

    pub(super) fn link_remove(&mut self, now: WallTime, version: Version, link: LinkId) -> Result<Change, Refusal> {
        let record = self.links.remove(&link).ok_or_else(|| unknown(link))?;
        self.revocations.revoke(link, Revocation { below: Generation(u64::MAX), version, at: now });
        Ok(Change::made(format!("link {} removed and its route revoked", record.name)))
    }
}

fn relays(spread: u8) -> String {
    format!("{spread} relay{}", if spread == 1 { "" } else { "s" })
}

fn check_spread(spread: u8) -> Result<(), Refusal> {
    if (1..=SPREAD_MAX).contains(&spread) {
        return Ok(());
    }
    Err(Refusal::new(
        code::SETTING_OUT_OF_BOUNDS,
        format!("the spread is {spread}, but must be from 1 to {SPREAD_MAX}: each relay takes a circuit of its own"),
        "Most links need no more than 2: postroad link set NAME --spread 2",
    ))
}

fn unknown(link: LinkId) -> Refusal {
    Refusal::new(code::LINK_UNKNOWN, format!("there is no {link}"), "See which there are: postroad link list")
}
