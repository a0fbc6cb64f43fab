//! Who is the primary and who takes reads, as pure functions of the evidence, each with its reason.

use core::{fmt, net::SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    evidence::{Answer, Evidence, Failure, Role},
    lag::{History, Lag},
    settings::Settings,
};
use crate::time::Moment;

/// Everything that a choice rests on. There is no memory of earlier choices in it, and no order.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// When the choice is made.
    pub now: Moment,
    /// What the operator set.
    pub settings: &'a Settings,
    /// What is known of each node.
    pub nodes: &'a BTreeMap<String, Evidence>,
    /// Where the primary's log has been.
    pub history: &'a History,
}

/// Why a node is set aside, whatever its role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Aside {
    /// No probe has come back yet.
    NeverProbed,
    /// So many probes in a row have failed.
    Unreachable {
        /// How many.
        failures: u64,
        /// The last.
        failure: Option<Failure>,
    },
    /// Its last answer is too old.
    Stale {
        /// How old, in milliseconds.
        age_ms: u64,
    },
    /// Another node answers at its address.
    OtherIdentity {
        /// Who.
        announced: String,
    },
    /// It belongs to another database cluster than the configuration says.
    OtherCluster {
        /// Which.
        announced: String,
    },
}

impl Aside {
    /// A stable name, equal for all causes that are the same to an operator.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NeverProbed => "NEVER_PROBED",
            Self::Unreachable { .. } | Self::Stale { .. } => "UNREACHABLE",
            Self::OtherIdentity { .. } => "OTHER_IDENTITY",
            Self::OtherCluster { .. } => "OTHER_CLUSTER",
        }
    }
}

impl fmt::Display for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverProbed => f.write_str("no probe of it has come back yet"),
            Self::Unreachable { failures, failure } => {
                match failures {
                    1 => f.write_str("a probe failed")?,
                    _ => write!(f, "{failures} probes in a row failed")?,
                }
                failure.iter().try_for_each(|failure| write!(f, ": {failure}"))
            }
            Self::Stale { age_ms } => write!(f, "its last answer is {age_ms} ms old, so its state is unknown"),
            Self::OtherIdentity { announced } => {
                write!(f, "{announced:?} answers at its address; the id in [nodes] must be what the node announces")
            }
            Self::OtherCluster { announced } => write!(f, "it belongs to another database cluster, {announced}"),
        }
    }
}

/// Why there is no primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoPrimary {
    /// Some nodes have not been heard of yet, well or ill: one of them may be newer than those that have.
    Starting {
        /// Which.
        nodes: Vec<String>,
    },
    /// No node is healthy.
    NobodyHealthy,
    /// No healthy node says that it is one.
    NobodyAnnounces,
    /// Who says so takes no writes.
    ReadOnly {
        /// Who.
        nodes: Vec<String>,
    },
    /// Who says so bears an older epoch than was seen elsewhere: an isolated old primary.
    Older {
        /// Who.
        nodes: Vec<String>,
        /// The highest epoch that any node has borne.
        epoch: u64,
    },
    /// Several say so in one epoch.
    Ambiguous {
        /// Who.
        nodes: Vec<String>,
    },
    /// The nodes belong to several database clusters.
    Clusters {
        /// Which, by node.
        nodes: Vec<(String, String)>,
    },
}

impl fmt::Display for NoPrimary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting { nodes } => {
                write!(f, "the balancer has just started, and {} has not been probed yet", nodes.join(", "))
            }
            Self::NobodyHealthy => f.write_str("no node is healthy"),
            Self::NobodyAnnounces => f.write_str("no healthy node says that it is the primary"),
            Self::ReadOnly { nodes } => write!(f, "{} takes no writes", nodes.join(", ")),
            Self::Older { nodes, epoch } => {
                write!(f, "{} bears an older epoch than {epoch}, which was seen elsewhere", nodes.join(", "))
            }
            Self::Ambiguous { nodes } => write!(
                f,
                "{} are all primaries of the same epoch, so none is chosen: stop or demote all but one",
                nodes.join(" and ")
            ),
            Self::Clusters { nodes } => {
                f.write_str("the nodes belong to several database clusters, so none is chosen:")?;
                nodes.iter().try_for_each(|(node, cluster)| write!(f, " {node} to {cluster}"))
            }
        }
    }
}

/// Where connections go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The node.
    pub node: String,
    /// The address at which it answered.
    pub address: SocketAddr,
    /// The epoch that it bears.
    pub epoch: u64,
}

/// Why a node takes no reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoReads {
    /// It is set aside.
    Aside(Aside),
    /// It is the primary, and `primary_in_ro` is false.
    Primary,
    /// It says that it is a primary and is not the one that was chosen.
    NotChosen,
    /// The primary does not list it as connected.
    NotStreaming {
        /// The primary.
        primary: String,
    },
    /// It is too far behind.
    Behind {
        /// How far.
        lag: Lag,
    },
    /// It does not say how far it is, so that no limit can be kept.
    LagUnknown,
    /// It has too few places left.
    Full {
        /// Connections that are open.
        connections: u64,
        /// Its own maximum.
        connections_max: u64,
    },
    /// It stands outside the cluster that the others form.
    Outside,
}

impl fmt::Display for NoReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aside(aside) => aside.fmt(f),
            Self::Primary => f.write_str("it is the primary, and [routing] primary_in_ro is false"),
            Self::NotChosen => f.write_str("it says that it is a primary and was not chosen"),
            Self::NotStreaming { primary } => write!(f, "{primary} does not list it as connected"),
            Self::Behind { lag } => {
                write!(f, "it is {} bytes and {:.1} s behind", lag.bytes, lag.span.as_secs_f64())
            }
            Self::LagUnknown => f.write_str("it does not say how far it has replayed, and a limit of lag is set"),
            Self::Full { connections, connections_max } => {
                write!(f, "{connections} of its {connections_max} connections are taken")
            }
            Self::Outside => f.write_str("it stands outside the cluster that the others form"),
        }
    }
}

impl<'a> Facts<'a> {
    /// The node's answer, if it counts.
    ///
    /// # Errors
    /// Why the node is set aside (DB-10, DB-11, DB-14).
    pub fn healthy(&self, node: &str) -> Result<&'a Answer, Aside> {
        let Some(evidence) = self.nodes.get(node) else { return Err(Aside::NeverProbed) };
        let Some((at, answer)) = &evidence.answer else {
            return Err(match &evidence.failure {
                Some(_) => Aside::Unreachable { failures: evidence.failures, failure: evidence.failure.clone() },
                None => Aside::NeverProbed,
            });
        };
        if evidence.failures >= self.settings.unhealthy_after {
            return Err(Aside::Unreachable { failures: evidence.failures, failure: evidence.failure.clone() });
        }
        let age = self.now.since(*at);
        if age >= self.settings.evidence_age_max() {
            return Err(Aside::Stale { age_ms: age.as_millis() as u64 });
        }
        match (&self.settings.cluster, &answer.cluster) {
            _ if answer.identity != node => Err(Aside::OtherIdentity { announced: answer.identity.clone() }),
            (Some(pinned), announced) if announced.as_ref() != Some(pinned) => {
                Err(Aside::OtherCluster { announced: announced.clone().unwrap_or_default() })
            }
            _ => Ok(answer),
        }
    }

    fn all_healthy(&self) -> impl Iterator<Item = (&'a String, &'a Answer)> {
        self.nodes.keys().filter_map(|node| Some((node, self.healthy(node).ok()?)))
    }

    /// The primary (DB-2): the healthy node that announces the role, accepts writes and bears the highest epoch that any
    /// node of the list has ever borne.
    ///
    /// # Errors
    /// Why there is none.
    pub fn primary(&self) -> Result<Target, NoPrimary> {
        let clusters: BTreeSet<&String> =
            self.all_healthy().filter_map(|(_, answer)| answer.cluster.as_ref()).collect();
        if clusters.len() > 1 {
            let of = |(node, answer): (&String, &Answer)| Some((node.clone(), answer.cluster.clone()?));
            return Err(NoPrimary::Clusters { nodes: self.all_healthy().filter_map(of).collect() });
        }
        let of_role = |role| self.all_healthy().filter(move |(_, answer)| answer.role == role);
        let names = |of: &[(&String, &Answer)]| of.iter().map(|(node, _)| (*node).clone()).collect::<Vec<_>>();
        let announcing: Vec<_> = of_role(Role::Primary).collect();
        if announcing.is_empty() {
            let single: Vec<_> = of_role(Role::None).filter(|(_, answer)| answer.writable).collect();
            return match single[..] {
                [] if self.all_healthy().next().is_none() => Err(NoPrimary::NobodyHealthy),
                [] => Err(NoPrimary::NobodyAnnounces),
                [(node, answer)] => Ok(target(node, answer)),
                _ => Err(NoPrimary::Ambiguous { nodes: names(&single) }),
            };
        }
        let writable: Vec<_> = announcing.iter().copied().filter(|(_, answer)| answer.writable).collect();
        if writable.is_empty() {
            return Err(NoPrimary::ReadOnly { nodes: names(&announcing) });
        }
        let epoch = self.nodes.values().map(|evidence| evidence.epoch_max).max().unwrap_or_default();
        let newest: Vec<_> = writable.iter().copied().filter(|(_, answer)| answer.epoch >= epoch).collect();
        match newest[..] {
            [] => Err(NoPrimary::Older { nodes: names(&writable), epoch }),
            [(node, answer)] => Ok(target(node, answer)),
            _ => Err(NoPrimary::Ambiguous { nodes: names(&newest) }),
        }
    }

    /// Up to where replicas are compared: all of the primary's history, or without a primary what the foremost replica
    /// has replayed.
    fn ceiling(&self, primary: Option<&Target>) -> u64 {
        if primary.is_some() {
            return u64::MAX;
        }
        self.all_healthy()
            .filter(|(_, answer)| answer.role == Role::Secondary)
            .filter_map(|(_, answer)| answer.position)
            .map(|position| position.sequence)
            .max()
            .unwrap_or_default()
    }

    /// How far `node` is behind; none where it is no secondary or does not say.
    #[must_use]
    pub fn lag(&self, node: &str, primary: Option<&Target>) -> Option<Lag> {
        let answer = self.healthy(node).ok().filter(|answer| answer.role == Role::Secondary)?;
        Some(self.history.lag(self.now, answer.position?, self.ceiling(primary)))
    }

    /// Whether `node` takes reads (DB-3).
    ///
    /// # Errors
    /// Why it does not.
    pub fn reads(&self, node: &str, primary: Option<&Target>) -> Result<&'a Answer, NoReads> {
        let answer = self.healthy(node).map_err(NoReads::Aside)?;
        let chosen = primary.is_some_and(|primary| primary.node == node);
        match answer.role {
            Role::Primary if !chosen => return Err(NoReads::NotChosen),
            Role::Primary if !self.settings.primary_in_ro => return Err(NoReads::Primary),
            Role::None if !chosen && self.nodes.len() > 1 => return Err(NoReads::Outside),
            Role::Primary | Role::None => {}
            Role::Secondary => self.follows(node, answer, primary)?,
        }
        let places = answer.connections_max.saturating_sub(answer.connections);
        if places <= self.settings.connection_reserve {
            let (connections, connections_max) = (answer.connections, answer.connections_max);
            return Err(NoReads::Full { connections, connections_max });
        }
        Ok(answer)
    }

    fn follows(&self, node: &str, answer: &Answer, primary: Option<&Target>) -> Result<(), NoReads> {
        // Without a primary there is nobody to ask, and reads go on (D8).
        if let Some(primary) = primary
            && let Some((_, leads)) = self.nodes.get(&primary.node).and_then(|evidence| evidence.answer.as_ref())
            && !leads.replicas.iter().any(|replica| replica.is(node, answer.address))
        {
            return Err(NoReads::NotStreaming { primary: primary.node.clone() });
        }
        let (bytes_max, seconds_max) = (self.settings.max_lag_bytes, self.settings.max_lag_seconds);
        match self.lag(node, primary) {
            None if bytes_max > 0 || seconds_max > 0 => Err(NoReads::LagUnknown),
            Some(lag)
                if (bytes_max > 0 && lag.bytes > bytes_max)
                    || (seconds_max > 0 && lag.span.as_millis() > u128::from(seconds_max) * 1_000) =>
            {
                Err(NoReads::Behind { lag })
            }
            _ => Ok(()),
        }
    }
}

fn target(node: &str, answer: &Answer) -> Target {
    Target { node: node.to_owned(), address: answer.address, epoch: answer.epoch }
}
