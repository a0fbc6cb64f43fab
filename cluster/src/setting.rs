//! Settings of the whole cluster: names, bounds, defaults and reasons.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One setting with its value, always within bounds: [`Setting::parse`] is the only way from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Setting {
    /// Hours that a relay admits by its last policy without the control plane (RP-25).
    PolicyLeaseHours(u64),
    /// Hours that a grant lives at least (RP-26).
    GrantHours(u64),
    /// Seconds that a flow waits for a path before both its sockets are reset (RP-1).
    FlowWaitSeconds(u64),
}

/// What there is to know of a setting.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The name that people use.
    pub name: &'static str,
    /// The least value.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// The value where none was set.
    pub default: u64,
    /// What it means and why it is bounded so.
    pub why: &'static str,
    make: fn(u64) -> Setting,
}

/// [`Setting::PolicyLeaseHours`].
pub const POLICY_LEASE_HOURS: Description = Description {
    name: "policy_lease_hours",
    least: 1,
    most: 168,
    default: 72,
    why: "how long relays admit new connections while the control plane is down",
    make: Setting::PolicyLeaseHours,
};

/// [`Setting::GrantHours`].
pub const GRANT_HOURS: Description = Description {
    name: "grant_hours",
    least: 1,
    most: 224,
    default: 4,
    why: "how long a permission lives; never less than the policy lease and a third of it",
    make: Setting::GrantHours,
};

/// [`Setting::FlowWaitSeconds`].
pub const FLOW_WAIT_SECONDS: Description = Description {
    name: "flow_wait_seconds",
    least: 1,
    most: 3_600,
    default: 60,
    why: "how long flows wait for a path; one that waits longer than an hour holds its buffers for nothing",
    make: Setting::FlowWaitSeconds,
};

/// Every setting.
pub const ALL: [Description; 3] = [POLICY_LEASE_HOURS, GRANT_HOURS, FLOW_WAIT_SECONDS];

/// The value of a setting, where `set` holds those that differ from their default by name.
#[must_use]
pub fn value(set: &BTreeMap<String, Setting>, known: &Description) -> u64 {
    set.get(known.name).map_or(known.default, |setting| setting.describe().1)
}

impl Setting {
    /// The setting `name` with the value in `text`.
    ///
    /// # Errors
    /// A sentence that names the known settings or the bounds.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let Some(known) = ALL.iter().find(|known| known.name == name) else {
            let names: Vec<_> = ALL.iter().map(|known| known.name).collect();
            return Err(format!("there is no setting {name:?}; there are {}", names.join(", ")));
        };
        match text.parse::<u64>() {
            Ok(value) if (known.least..=known.most).contains(&value) => Ok((known.make)(value)),
            _ => Err(format!("{name} is {text}, but must be from {} to {}: {}", known.least, known.most, known.why)),
        }
    }

    /// Its description and value.
    #[must_use]
    pub const fn describe(self) -> (&'static Description, u64) {
        match self {
            Self::PolicyLeaseHours(value) => (&POLICY_LEASE_HOURS, value),
            Self::GrantHours(value) => (&GRANT_HOURS, value),
            Self::FlowWaitSeconds(value) => (&FLOW_WAIT_SECONDS, value),
        }
    }

    /// Whether the value is within its bounds; a command from the wire may hold anything.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        let (known, value) = self.describe();
        known.least <= value && value <= known.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_description_is_that_of_its_setting() {
        for known in &ALL {
            let setting = Setting::parse(known.name, &known.default.to_string()).unwrap();
            assert_eq!(setting.describe().0.name, known.name);
            assert!(Setting::parse(known.name, &(known.most + 1).to_string()).is_err());
            assert!(Setting::parse(known.name, "0").is_err());
        }
        assert!(!Setting::PolicyLeaseHours(0).is_valid());
        assert!(Setting::parse("policy", "1").unwrap_err().contains("policy_lease_hours"));
    }
}
