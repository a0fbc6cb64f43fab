//! Which change of the members is refused, and why: pure decisions over what the leader knows.

use std::collections::{BTreeMap, BTreeSet};

use postroad_cluster::{
    command::Refusal,
    id::NodeId,
    limits::{CONTROL_VOTERS_MAX, RAFT_PROMOTE_LAG_MAX},
};

/// The members as the leader sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) me: NodeId,
    pub(crate) voters: BTreeSet<NodeId>,
    pub(crate) learners: BTreeSet<NodeId>,
    /// Those that answered within an election's time, this one among them.
    pub(crate) live: BTreeSet<NodeId>,
    /// How far each other member's log is known to be equal.
    pub(crate) matched: BTreeMap<NodeId, Option<u64>>,
    pub(crate) last: u64,
}

impl View {
    /// Entries that `node` is behind.
    pub(crate) fn lag(&self, node: NodeId) -> u64 {
        if node == self.me {
            return 0;
        }
        let next = self.matched.get(&node).copied().flatten().map_or(0, |index| index + 1);
        (self.last + 1).saturating_sub(next)
    }

    /// Whether every member answers.
    pub(crate) fn all_answer(&self) -> bool {
        self.voters.union(&self.learners).all(|node| self.live.contains(node))
    }

    /// Whether the group may lose `node`, voter or not.
    pub(crate) fn check_loss(&self, node: NodeId) -> Result<(), Refusal> {
        if !self.voters.contains(&node) {
            return if self.learners.contains(&node) { Ok(()) } else { Err(not_a_member(node)) };
        }
        let rest: BTreeSet<NodeId> = self.voters.iter().copied().filter(|voter| *voter != node).collect();
        if rest.is_empty() {
            return Err(Refusal::new(
                "CONTROL_LAST_VOTER",
                format!("{node} is the only voting control node; without it nothing can be decided"),
                "Add another control node first, and promote it",
            ));
        }
        self.check_now()?;
        self.check_majority(&rest, "Bring the others back first, or remove one that is gone for good")
    }

    /// Whether `node` may vote.
    pub(crate) fn check_promotion(&self, node: NodeId) -> Result<(), Refusal> {
        if self.voters.contains(&node) {
            return Ok(());
        }
        if !self.learners.contains(&node) {
            return Err(not_a_member(node));
        }
        if self.voters.len() >= CONTROL_VOTERS_MAX {
            return Err(Refusal::new(
                "CONTROL_TOO_MANY_VOTERS",
                format!("there are {} voting control nodes, at most {CONTROL_VOTERS_MAX} may vote", self.voters.len()),
                "Demote one first",
            ));
        }
        let lag = self.lag(node);
        if !self.live.contains(&node) || lag > RAFT_PROMOTE_LAG_MAX {
            let found = if self.live.contains(&node) { format!("is {lag} entries behind") } else { "is silent".into() };
            return Err(Refusal::new(
                "CONTROL_LEARNER_BEHIND",
                format!("{node} {found}; as a voter it would hold up every decision"),
                "Wait until `postroad control list` shows that it has caught up",
            ));
        }
        self.check_now()?;
        let mut voters = self.voters.clone();
        voters.insert(node);
        self.check_majority(&voters, "Bring the silent ones back, or remove them, before adding another")
    }

    /// Whether there is room for one more member.
    pub(crate) fn check_addition(&self, node: NodeId) -> Result<(), Refusal> {
        let members = self.voters.len() + self.learners.len();
        let known = self.voters.contains(&node) || self.learners.contains(&node);
        // As many learners as voters is enough to replace every voter at once.
        if known || members < 2 * CONTROL_VOTERS_MAX {
            return Ok(());
        }
        Err(Refusal::new(
            "CONTROL_TOO_MANY_MEMBERS",
            format!("there are {members} control nodes, at most {} can be", 2 * CONTROL_VOTERS_MAX),
            "Remove one first",
        ))
    }

    /// The live voter that is least behind; of equals the one with the lowest number.
    pub(crate) fn heir(&self) -> Result<NodeId, Refusal> {
        let others = self.voters.iter().copied().filter(|voter| *voter != self.me && self.live.contains(voter));
        others.min_by_key(|voter| (self.lag(*voter), *voter)).ok_or_else(|| {
            Refusal::new(
                "CONTROL_NO_SUCCESSOR",
                format!("{} leads, and no other voting control node answers", self.me),
                "Bring another one back, or add and promote one",
            )
        })
    }

    /// Whether anything can be decided at all: a change needs a majority of the voters before it, too.
    fn check_now(&self) -> Result<(), Refusal> {
        let live = self.voters.intersection(&self.live).count();
        let majority = self.voters.len() / 2 + 1;
        if live >= majority {
            return Ok(());
        }
        Err(Refusal::new(
            "CONTROL_NO_QUORUM",
            format!("of {} voting control nodes {live} answer, and {majority} must", self.voters.len()),
            "Bring the silent ones back first",
        ))
    }

    fn check_majority(&self, voters: &BTreeSet<NodeId>, hint: &str) -> Result<(), Refusal> {
        let live = voters.intersection(&self.live).count();
        let majority = voters.len() / 2 + 1;
        if live >= majority {
            return Ok(());
        }
        let silent: Vec<String> = voters.difference(&self.live).map(ToString::to_string).collect();
        Err(Refusal::new(
            "QUORUM_WOULD_BE_LOST",
            format!(
                "of the {} voting control nodes there would then be, {majority} must answer and {live} do; silent: {}",
                voters.len(),
                silent.join(", ")
            ),
            hint,
        ))
    }
}

fn not_a_member(node: NodeId) -> Refusal {
    Refusal::new(
        "CONTROL_NOT_A_MEMBER",
        format!("{node} is no member of the control group"),
        "Look at `postroad control list` for the members",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(numbers: impl IntoIterator<Item = u64>) -> BTreeSet<NodeId> {
        numbers.into_iter().map(NodeId).collect()
    }

    fn view(voters: u64, live: &[u64]) -> View {
        View {
            me: NodeId(1),
            voters: nodes(1..=voters),
            learners: nodes([20, 21]),
            live: nodes(live.iter().copied()),
            matched: [(2, Some(90)), (3, Some(95)), (4, Some(95)), (20, Some(95)), (21, None)]
                .map(|(node, index)| (NodeId(node), index))
                .into(),
            last: 99,
        }
    }

    fn code(result: Result<(), Refusal>) -> String {
        result.map_or_else(|refusal| refusal.code, |()| "ok".to_owned())
    }

    #[test]
    fn a_voter_goes_only_if_the_rest_keeps_a_live_majority() {
        for (voters, live, node, expected) in [
            (1, &[1][..], 1, "CONTROL_LAST_VOTER"),
            (2, &[1, 2], 2, "ok"),
            (2, &[1], 2, "CONTROL_NO_QUORUM"),
            (3, &[1, 2, 3], 3, "ok"),
            (3, &[1, 2], 3, "ok"),
            (3, &[1, 2], 2, "QUORUM_WOULD_BE_LOST"),
            (4, &[1, 2, 3], 2, "ok"),
            (5, &[1, 2, 3], 2, "QUORUM_WOULD_BE_LOST"),
            (5, &[1, 2, 3], 4, "ok"),
            (5, &[1, 2], 4, "CONTROL_NO_QUORUM"),
            (3, &[1, 2, 3], 20, "ok"),
            (3, &[1, 2, 3], 99, "CONTROL_NOT_A_MEMBER"),
        ] {
            assert_eq!(code(view(voters, live).check_loss(NodeId(node))), expected, "{voters} {live:?} {node}");
        }
    }

    #[test]
    fn a_learner_votes_only_if_it_has_caught_up_and_there_is_room() {
        for (voters, live, node, expected) in [
            (1, &[1, 20][..], 20, "ok"),
            (1, &[1, 21], 21, "CONTROL_LEARNER_BEHIND"),
            (1, &[1], 20, "CONTROL_LEARNER_BEHIND"),
            (3, &[1, 20], 20, "CONTROL_NO_QUORUM"),
            (3, &[1, 2, 20], 20, "ok"),
            (7, &[1, 2, 3, 4, 20], 20, "CONTROL_TOO_MANY_VOTERS"),
            (3, &[1, 2, 3], 2, "ok"),
            (3, &[1, 2, 3], 99, "CONTROL_NOT_A_MEMBER"),
        ] {
            assert_eq!(code(view(voters, live).check_promotion(NodeId(node))), expected, "{voters} {live:?} {node}");
        }
    }

    #[test]
    fn the_heir_is_the_live_voter_least_behind() {
        assert_eq!(view(4, &[1, 2, 3, 4]).heir(), Ok(NodeId(3)));
        assert_eq!(view(4, &[1, 2]).heir(), Ok(NodeId(2)));
        assert_eq!(view(4, &[1, 20]).heir().unwrap_err().code, "CONTROL_NO_SUCCESSOR");
        assert_eq!(view(1, &[1]).heir().unwrap_err().code, "CONTROL_NO_SUCCESSOR");
    }

    #[test]
    fn members_are_bounded() {
        let mut view = view(7, &[]);
        assert_eq!(view.check_addition(NodeId(30)), Ok(()));
        view.learners = nodes(20..27);
        assert_eq!(code(view.check_addition(NodeId(30))), "CONTROL_TOO_MANY_MEMBERS");
        assert_eq!(view.check_addition(NodeId(20)), Ok(()));
    }
}
