//! One node of the demonstration: its files, its ports and its process.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use super::{child::Child, fleet::Role};
use crate::{errors::Failure, net::delay::Delay};

/// One node.
#[derive(Debug)]
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub role: Role,
    /// The port of its relay; none on workload nodes.
    pub port: Option<u16>,
    /// The way to that which takes its time, if there is one.
    pub(super) delay: Option<Delay>,
    /// Its data directory.
    pub data: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// The port of its console.
    pub console: u16,
    pub(super) config: PathBuf,
    pub(super) process: Option<Child>,
}

impl Member {
    /// Where others reach its relay.
    pub fn address(&self) -> String {
        match &self.delay {
            Some(delay) => delay.address.to_string(),
            None => self.listens().to_string(),
        }
    }

    pub(super) fn listens(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.unwrap_or_default()).into()
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::pid)
    }

    /// Its configuration as it is written.
    pub(super) fn configured(&self) -> Result<String, Failure> {
        fs::read_to_string(&self.config).map_err(|error| {
            Failure::failed("DEMO_DIRECTORY", format!("could not read {}: {error}", self.config.display()))
        })
    }

    pub(super) fn config_text(&self, domain: &str) -> String {
        let data = toml_edit::Value::from(self.data.display().to_string());
        let node = format!("[node]\ndata = {data}\nname = \"{}\"\n", self.name);
        let console = format!("\n[console]\nlisten = \"127.0.0.1:{}\"\n", self.console);
        if self.port.is_none() {
            return format!("{node}\n[listen]\noutbound = \"127.0.0.1:0\"\n{console}");
        }
        format!(
            "{node}\n[listen]\nrelay = \"{address}\"\noutbound = \"127.0.0.1:0\"\n\n\
             [relay]\nadvertised = \"{address}\"\n\n\
             [domain]\nhost = \"host-{domain}\"\npower = \"feed-{domain}\"\nnetwork = \"uplink-{domain}\"\n{console}",
            address = self.address()
        )
    }
}
