//! The control group: who votes, who leads, who lags.

use postroad_cluster::{
    id::{NodeId, Role},
    time::WallTime,
};
use postroad_raft::{Consensus, ControlStatus, TermCause};
use serde::{Deserialize, Serialize};

use super::Sightings;

/// How long a member may be silent before it counts as lost, in milliseconds: the longest election.
const SILENT_MS_MAX: u64 = 3_000;

/// The control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlView {
    /// The node whose view this is.
    pub seen_by: NodeId,
    /// Who leads, as far as it knows.
    pub leader: Option<NodeId>,
    /// The newest term.
    pub term: u64,
    /// Since when that node has seen this leader lead.
    pub leads_since: WallTime,
    /// Why the term began, where that node saw it.
    pub cause: Option<String>,
    /// The end of its log.
    pub log: u64,
    /// How far it is committed.
    pub committed: u64,
    /// How far it is applied there.
    pub applied: u64,
    /// Whether a change of the members is half done.
    pub changing: bool,
    /// Why its member of the group has stopped, if it has.
    pub stopped: Option<String>,
    /// Every control node.
    pub members: Vec<Member>,
}

/// A control node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Where others reach it.
    pub address: Option<String>,
    /// Whether it votes.
    pub votes: bool,
    /// Whether the log reaches it.
    pub learns: bool,
    /// Whether the authority has certified it, so that it issues and signs.
    pub certified: bool,
    /// Whether it answers; nothing if that is not known, since only the leader knows.
    pub live: Option<bool>,
    /// Entries that it is behind, as the leader knows.
    pub lag_entries: Option<u64>,
    /// How long ago the last message was sent that it answered, in milliseconds.
    pub silent_ms: Option<u64>,
}

impl ControlView {
    /// The members that vote.
    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.votes)
    }

    /// Voters that may be lost before nothing can be decided. Those whose state is not known count as there.
    #[must_use]
    pub fn can_lose(&self) -> u64 {
        let voters = self.voters().count() as u64;
        let live = self.voters().filter(|member| member.live != Some(false)).count() as u64;
        if self.leader.is_none() || voters == 0 { 0 } else { live.saturating_sub(voters / 2 + 1) }
    }

    /// The follower that answered the longest time ago.
    #[must_use]
    pub fn slowest(&self) -> Option<&Member> {
        self.members.iter().filter(|member| member.silent_ms.is_some()).max_by_key(|member| member.silent_ms)
    }
}

fn cause(status: &ControlStatus, name: impl Fn(NodeId) -> String) -> Option<String> {
    Some(match status.cause {
        TermCause::Unknown => return None,
        TermCause::Founded => "the cluster was founded".to_owned(),
        TermCause::HandedOver { from: Some(from) } => format!("{} handed over", name(from)),
        TermCause::HandedOver { from: None } => "the leader before handed over".to_owned(),
        TermCause::Election { candidate, silent: Some(silent) } => {
            format!("{} heard nothing of {}", name(candidate), name(silent))
        }
        TermCause::Election { candidate, silent: None } => format!("{} heard of no leader", name(candidate)),
    })
}

pub(super) fn view(consensus: &Consensus, seen: &Sightings, now: WallTime) -> ControlView {
    let status = consensus.status();
    let state = consensus.state();
    let leads = status.leader == Some(status.me);
    let name = |id: NodeId| state.nodes.get(&id).map_or_else(|| id.to_string(), |record| record.name.to_string());
    let member = |id: NodeId| {
        let record = state.nodes.get(&id);
        let follower = status.followers.get(&id);
        let live = (leads && id != status.me)
            .then(|| follower.and_then(|it| it.silent_ms).is_some_and(|silent| silent <= SILENT_MS_MAX));
        let in_group = status.voters.get(&id).or_else(|| status.learners.get(&id));
        Member {
            id,
            name: name(id),
            address: record.and_then(|record| record.advertised.clone()).or_else(|| in_group.cloned()),
            votes: status.voters.contains_key(&id),
            learns: in_group.is_some(),
            certified: state.issuers.contains_key(&id),
            live: if id == status.me { Some(true) } else { live },
            lag_entries: follower.map(|it| it.lag_entries),
            silent_ms: follower.and_then(|it| it.silent_ms),
        }
    };
    let controls = state.nodes.iter().filter(|(_, record)| record.roles.contains(&Role::Control));
    let mut ids: Vec<NodeId> = controls.map(|(id, _)| *id).collect();
    ids.extend(status.voters.keys().chain(status.learners.keys()).copied());
    ids.sort_unstable();
    ids.dedup();
    let leading = status.leader.map_or_else(|| "nobody".to_owned(), |leader| leader.to_string());
    ControlView {
        seen_by: status.me,
        leader: status.leader,
        term: status.term,
        leads_since: seen.since(format_args!("{leading} leads in term {}", status.term), now),
        cause: cause(&status, name),
        log: status.last_log.unwrap_or_default(),
        committed: status.committed.unwrap_or_default(),
        applied: status.applied.unwrap_or_default(),
        changing: status.changing,
        stopped: status.stopped.clone(),
        members: ids.into_iter().map(member).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(live: &[Option<bool>]) -> ControlView {
        let member = |(at, live): (usize, &Option<bool>)| Member {
            id: NodeId(at as u64 + 1),
            name: format!("c{at}"),
            address: None,
            votes: true,
            learns: true,
            certified: true,
            live: *live,
            lag_entries: None,
            silent_ms: None,
        };
        ControlView {
            seen_by: NodeId(1),
            leader: Some(NodeId(1)),
            term: 1,
            leads_since: WallTime(0),
            cause: None,
            log: 0,
            committed: 0,
            applied: 0,
            changing: false,
            stopped: None,
            members: live.iter().enumerate().map(member).collect(),
        }
    }

    #[test]
    fn a_majority_must_stay() {
        let yes = Some(true);
        for (live, expected) in [
            (vec![yes], 0),
            (vec![yes, yes], 0),
            (vec![yes, yes, yes], 1),
            (vec![yes, yes, Some(false)], 0),
            (vec![yes, None, None], 1),
            (vec![yes; 5], 2),
        ] {
            assert_eq!(group(&live).can_lose(), expected, "{live:?}");
        }
        assert_eq!(ControlView { leader: None, ..group(&[yes; 3]) }.can_lose(), 0);
    }
}
