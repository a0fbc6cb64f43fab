//! What happens to a world from outside: ways that lose, delay, repeat or swallow, hosts that crash, restart or stand
//! still.

use std::{collections::BTreeMap, time::Duration};

use rand::{RngExt, rngs::StdRng};
use serde::{Deserialize, Serialize};

use crate::{
    network::{Condition, ETHERNET_PAYLOAD_BYTES, Fabric, Host},
    scenario::{CONTROLS, HOSTS, RELAYS},
};

/// A fault and when it begins, counted from the moment at which the world stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// When, in virtual milliseconds.
    pub at_ms: u64,
    /// What.
    pub fault: Fault,
}

/// One fault. Hosts are counted from 0; the first three are the control nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Every way loses packets.
    Loss {
        /// Of a hundred.
        percent: u8,
        /// For how long.
        for_ms: u64,
    },
    /// Every way takes longer, by a time that differs from packet to packet, so that they overtake each other.
    Delay {
        /// The least more.
        least_ms: u64,
        /// What chance adds at most.
        jitter_ms: u64,
        /// For how long.
        for_ms: u64,
    },
    /// Every way repeats packets.
    Duplicate {
        /// Of a hundred.
        percent: u8,
        /// For how long.
        for_ms: u64,
    },
    /// One direction between two hosts swallows everything.
    Cut {
        /// From.
        from: usize,
        /// To.
        to: usize,
        /// For how long.
        for_ms: u64,
    },
    /// These hosts and the others do not reach each other.
    Partition {
        /// One side.
        hosts: Vec<usize>,
        /// For how long.
        for_ms: u64,
    },
    /// The ways from and to one host carry little.
    Slow {
        /// The host.
        host: usize,
        /// Bytes a second in each direction and to each other host.
        bytes_per_second: u64,
        /// For how long.
        for_ms: u64,
    },
    /// The ways from and to one host swallow large packets.
    Narrow {
        /// The host.
        host: usize,
        /// For how long.
        for_ms: u64,
    },
    /// Power fails: unsynced writes are lost. Then the host starts again.
    Crash {
        /// The host.
        host: usize,
        /// How long it is down.
        for_ms: u64,
    },
    /// The process is killed: writes survive. Then it is started again.
    Kill {
        /// The host.
        host: usize,
        /// How long it is down.
        for_ms: u64,
    },
    /// The node is stopped in order and started again.
    Restart {
        /// The host.
        host: usize,
        /// How long it is down.
        for_ms: u64,
    },
    /// The node stands still, as after a SIGSTOP, and goes on.
    Pause {
        /// The host.
        host: usize,
        /// For how long.
        for_ms: u64,
    },
    /// Power fails on the host that leads the control group, and on the first other control node that votes then, in
    /// the moment of its vote.
    Election {
        /// How long the leader is down.
        for_ms: u64,
        /// How long the voter is down.
        voter_for_ms: u64,
    },
    /// A relay is drained and resumed. Nothing is wrong then: flows move, and new ones open elsewhere.
    Drain {
        /// The host of the relay.
        host: usize,
        /// For how long.
        for_ms: u64,
    },
}

impl Fault {
    /// A fault by chance.
    #[must_use]
    pub fn draw(rng: &mut StdRng) -> Self {
        let for_ms = rng.random_range(200..12_000);
        let host = rng.random_range(0..HOSTS);
        match rng.random_range(0..14) {
            0 => Self::Loss { percent: rng.random_range(1..=30), for_ms },
            1 => Self::Delay { least_ms: rng.random_range(0..60), jitter_ms: rng.random_range(1..40), for_ms },
            2 => Self::Duplicate { percent: rng.random_range(1..=50), for_ms },
            3 | 4 => {
                let to = (host + rng.random_range(1..HOSTS)) % HOSTS;
                Self::Cut { from: host, to, for_ms }
            }
            5 | 6 => {
                let hosts: Vec<usize> = (0..HOSTS).filter(|_| rng.random_bool(0.4)).collect();
                Self::Partition { hosts: if hosts.is_empty() { vec![host] } else { hosts }, for_ms }
            }
            7 => Self::Slow { host, bytes_per_second: rng.random_range(20_000..200_000), for_ms },
            8 | 9 => Self::Crash { host, for_ms },
            10 => Self::Kill { host, for_ms: for_ms / 4 },
            11 => Self::Restart { host, for_ms: for_ms / 4 },
            12 => Self::Pause { host, for_ms: for_ms / 2 },
            _ => Self::Election { for_ms: for_ms / 2, voter_for_ms: rng.random_range(50..3_000) },
        }
    }

    /// A drain by chance.
    #[must_use]
    pub fn draw_drain(rng: &mut StdRng) -> Self {
        Self::Drain { host: rng.random_range(0..RELAYS), for_ms: rng.random_range(500..15_000) }
    }

    /// A narrow way by chance, for as long as it takes to be noticed and longer.
    #[must_use]
    pub fn draw_narrow(rng: &mut StdRng) -> Self {
        Self::Narrow { host: rng.random_range(0..HOSTS), for_ms: rng.random_range(2_000..40_000) }
    }

    /// Whether every host that it names exists.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        match self {
            Self::Loss { percent, .. } | Self::Duplicate { percent, .. } => *percent <= 100,
            Self::Delay { .. } | Self::Election { .. } => true,
            Self::Cut { from, to, .. } => *from < HOSTS && *to < HOSTS,
            Self::Partition { hosts, .. } => hosts.iter().all(|host| *host < HOSTS),
            Self::Slow { host, .. }
            | Self::Narrow { host, .. }
            | Self::Crash { host, .. }
            | Self::Kill { host, .. }
            | Self::Restart { host, .. }
            | Self::Pause { host, .. } => *host < HOSTS,
            Self::Drain { host, .. } => *host < RELAYS,
        }
    }

    /// How long it lasts.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        let ms = match self {
            Self::Loss { for_ms, .. }
            | Self::Delay { for_ms, .. }
            | Self::Duplicate { for_ms, .. }
            | Self::Cut { for_ms, .. }
            | Self::Partition { for_ms, .. }
            | Self::Slow { for_ms, .. }
            | Self::Narrow { for_ms, .. }
            | Self::Crash { for_ms, .. }
            | Self::Kill { for_ms, .. }
            | Self::Restart { for_ms, .. }
            | Self::Pause { for_ms, .. }
            | Self::Drain { for_ms, .. } => *for_ms,
            Self::Election { for_ms, voter_for_ms } => *for_ms.max(voter_for_ms),
        };
        Duration::from_millis(ms)
    }

    /// Whether it concerns ways; the others concern hosts.
    #[must_use]
    pub const fn is_of_ways(&self) -> bool {
        matches!(
            self,
            Self::Loss { .. }
                | Self::Delay { .. }
                | Self::Duplicate { .. }
                | Self::Cut { .. }
                | Self::Partition { .. }
                | Self::Slow { .. }
                | Self::Narrow { .. }
        )
    }

    /// Adds it to the condition of one way.
    fn shape(&self, from: usize, to: usize, condition: &mut Condition) {
        match self {
            Self::Loss { percent, .. } => condition.loss = condition.loss.max(f64::from(*percent) / 100.0),
            Self::Delay { least_ms, jitter_ms, .. } => {
                condition.delay += Duration::from_millis(*least_ms);
                condition.jitter += Duration::from_millis(*jitter_ms);
            }
            Self::Duplicate { percent, .. } => {
                condition.duplicate = condition.duplicate.max(f64::from(*percent) / 100.0);
            }
            Self::Cut { from: source, to: target, .. } => condition.cut |= (*source, *target) == (from, to),
            Self::Partition { hosts, .. } => condition.cut |= hosts.contains(&from) != hosts.contains(&to),
            Self::Slow { host, bytes_per_second, .. } if from == *host || to == *host => {
                condition.bytes_per_second = *bytes_per_second;
            }
            Self::Narrow { host, .. } if from == *host || to == *host => {
                condition.payload_bytes_max = condition.payload_bytes_max.min(ETHERNET_PAYLOAD_BYTES);
            }
            _ => {}
        }
    }
}

/// The faults of ways that are in force, which together make the network's conditions.
#[derive(Debug, Default)]
pub struct Weather {
    present: BTreeMap<usize, Fault>,
}

impl Weather {
    /// A fault begins; `number` names it for its end.
    pub fn begin(&mut self, number: usize, fault: Fault, fabric: &Fabric) {
        self.present.insert(number, fault);
        self.apply(fabric);
    }

    /// A fault ends.
    pub fn end(&mut self, number: usize, fabric: &Fabric) {
        self.present.remove(&number);
        self.apply(fabric);
    }

    /// All end.
    pub fn clear(&mut self, fabric: &Fabric) {
        self.present.clear();
        self.apply(fabric);
    }

    fn apply(&self, fabric: &Fabric) {
        fabric.heal();
        for from in 0..HOSTS {
            for to in (0..HOSTS).filter(|to| *to != from) {
                let mut condition = fabric.condition(host(from), host(to));
                for fault in self.present.values() {
                    fault.shape(from, to, &mut condition);
                }
                fabric.set(host(from), host(to), condition);
            }
        }
    }
}

/// The network's name of a host of the world.
#[must_use]
pub const fn host(index: usize) -> Host {
    Host(index as u16 + 1)
}

/// Which hosts are control nodes.
#[must_use]
pub const fn is_control(index: usize) -> bool {
    index < CONTROLS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn faults_of_one_way_add_up_and_end_one_by_one() {
        let fabric = Fabric::new(1, Condition::default());
        let mut weather = Weather::default();
        weather.begin(1, Fault::Cut { from: 0, to: 1, for_ms: 1 }, &fabric);
        weather.begin(2, Fault::Partition { hosts: vec![0, 4], for_ms: 1 }, &fabric);
        weather.begin(3, Fault::Loss { percent: 10, for_ms: 1 }, &fabric);
        let cut = |from, to| fabric.condition(host(from), host(to)).cut;
        assert!(cut(0, 1) && cut(1, 0) && cut(3, 4) && !cut(0, 4) && !cut(1, 2));
        weather.end(2, &fabric);
        assert!(cut(0, 1) && !cut(1, 0) && !cut(3, 4));
        assert!((fabric.condition(host(1), host(2)).loss - 0.1).abs() < 1e-9);
        weather.clear(&fabric);
        assert!(!cut(0, 1));
        assert_eq!(fabric.condition(host(1), host(2)), Condition::default());
    }
}
