//! The text of a systemd unit: what runs, with which rights, and what systemd keeps an eye on.

use std::path::PathBuf;

/// What a unit runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    /// This host's node, with a data directory of its own choice or systemd's `/var/lib/postroad`.
    Node { data: Option<PathBuf>, config: Option<PathBuf> },
    /// A database balancer without a cluster, by its configuration.
    DatabaseBalancer { config: PathBuf },
}

/// A unit.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// The program, as an absolute path.
    pub(super) program: PathBuf,
    /// What it runs.
    pub(super) runs: Runs,
    /// Whom it runs as.
    pub(super) user: String,
}

impl Unit {
    /// The unit's name with its ending.
    pub(super) fn name(&self) -> &'static str {
        match self.runs {
            Runs::Node { .. } => "postroad.service",
            Runs::DatabaseBalancer { .. } => "postroad-database-balancer.service",
        }
    }

    /// The unit as systemd reads it.
    pub(super) fn text(&self) -> String {
        let description = match self.runs {
            Runs::Node { .. } => "Postroad node",
            Runs::DatabaseBalancer { .. } => "Postroad database balancer",
        };
        let runs = self.runs_lines().join("\n");
        let rights = self.rights().join("\n");
        format!(
            "[Unit]
Description={description}
Documentation=man:postroad(1)
Wants=network-online.target
After=network-online.target time-sync.target

[Service]
Type=notify
NotifyAccess=main
{runs}
Restart=on-failure
# Its peers hold what was open for seconds; a long pause would be felt.
RestartSec=1
WatchdogSec=20
# A stop lets go of everything in order, supervisor by supervisor, in a minute at most.
TimeoutStopSec=75
LimitNOFILE=1048576
OOMScoreAdjust=-500

# It needs sockets and its own directory, and nothing else of the host.
{rights}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077

[Install]
WantedBy=multi-user.target
"
        )
    }

    fn runs_lines(&self) -> Vec<String> {
        let program = quoted(&self.program.display().to_string());
        match &self.runs {
            Runs::Node { data, config } => {
                let flag = |name: &str, path: &Option<PathBuf>| {
                    path.as_ref().map(|path| format!(" --{name} {}", quoted(&path.display().to_string())))
                };
                let flags: String = [flag("config", config), flag("data", data)].into_iter().flatten().collect();
                let directory = match data {
                    Some(data) => format!("ReadWritePaths={}", quoted(&data.display().to_string())),
                    None => "StateDirectory=postroad\nStateDirectoryMode=0700".to_owned(),
                };
                vec![format!("ExecStart={program}{flags} node"), directory]
            }
            Runs::DatabaseBalancer { config } => {
                // The password may stand there, away from a configuration that others read.
                let environment = quoted(&config.with_extension("env").display().to_string());
                let config = quoted(&config.display().to_string());
                vec![
                    format!("ExecStart={program} balance database --config {config}"),
                    "ExecReload=/bin/kill -HUP $MAINPID".to_owned(),
                    format!("EnvironmentFile=-{environment}"),
                    "LogsDirectory=postroad".to_owned(),
                ]
            }
        }
    }

    /// Ports below 1024 for whoever listens there, and for a node larger socket buffers than the system's bound.
    fn rights(&self) -> Vec<String> {
        let capabilities = match self.runs {
            Runs::Node { .. } => "CAP_NET_ADMIN CAP_NET_BIND_SERVICE",
            Runs::DatabaseBalancer { .. } => "CAP_NET_BIND_SERVICE",
        };
        vec![
            format!("User={}", self.user),
            format!("CapabilityBoundingSet={capabilities}"),
            format!("AmbientCapabilities={capabilities}"),
        ]
    }
}

/// A word of a command line of a unit: systemd splits at spaces, and expands `%` and `$`.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    if escaped.contains([' ', '\t', ';', '\'']) || escaped.len() != text.len() {
        return format!("\"{escaped}\"");
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(data: Option<&str>) -> Unit {
        Unit {
            program: "/usr/local/bin/postroad".into(),
            runs: Runs::Node { data: data.map(Into::into), config: None },
            user: "root".into(),
        }
    }

    #[test]
    fn a_node_keeps_its_data_where_systemd_makes_it_or_where_it_was_told() {
        let text = node(None).text();
        assert!(text.contains("\nExecStart=/usr/local/bin/postroad node\nStateDirectory=postroad\n"), "{text}");
        let text = node(Some("/srv/post road")).text();
        let wanted =
            "\nExecStart=/usr/local/bin/postroad --data \"/srv/post road\" node\nReadWritePaths=\"/srv/post road\"\n";
        assert!(text.contains(wanted), "{text}");
    }

    #[test]
    fn what_systemd_would_expand_is_escaped() {
        assert_eq!(quoted("/srv/100%"), "\"/srv/100%%\"");
        assert_eq!(quoted("/srv/$HOME \"x\""), "\"/srv/$$HOME \\\"x\\\"\"");
        assert_eq!(quoted("/srv/plain-1"), "/srv/plain-1");
    }
}
